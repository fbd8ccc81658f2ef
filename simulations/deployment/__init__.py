"""A federation of real processes: keys, processes, the operator's commands."""

import fedpart.flower.environment  # noqa: F401  before Flower and Ray read it
