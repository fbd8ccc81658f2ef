"""Vectorised: several clients computed at a time, for a GPU; nothing else knows this room."""
