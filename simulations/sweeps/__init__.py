"""Sweeps: many runs that belong together: methods, seeds, values of a key."""
