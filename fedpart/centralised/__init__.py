"""Centralised: learning weights and hyperparameters from data in one place."""
