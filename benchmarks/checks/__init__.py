"""Checks: crashes, soaks and memory, for hours at a time."""
