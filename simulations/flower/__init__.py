"""Flower: an experiment from the run config of a Flower app."""
