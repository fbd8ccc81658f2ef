"""Data sets that a configuration names."""
