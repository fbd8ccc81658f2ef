"""Workarounds: what reaches into Flower's private modules, each with the fault that it mends."""
