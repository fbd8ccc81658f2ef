"""Hyperparameters of signals and spectrograms: shifts in time, masks over time and frequency."""
