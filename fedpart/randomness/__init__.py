"""Randomness: every random number is a function of (seed, purpose, counters)."""
