"""Experiments: configurations, the command line, run folders, comparisons, the Ray-backed simulation."""
