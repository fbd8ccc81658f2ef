"""Vectorised: several clients computed at a time, for a GPU; nothing else knows this room.

As nothing else knows it, keeping it costs little, so it is kept. It has never been measured on a GPU. On a
CPU it takes 1.5 to 1.9 times as long as computing one client after another (docs/measurements/rounds.md).
"""

import fedpart.engines.vectorised.executor  # noqa: F401  registers its execution
