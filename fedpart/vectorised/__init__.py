"""Vectorised: several clients computed at a time, for a GPU; nothing else knows this room."""

import fedpart.vectorised.executor  # noqa: F401  registers its execution
