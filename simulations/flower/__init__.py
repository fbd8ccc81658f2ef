"""Flower: an experiment from the run config of a Flower app."""

import fedpart.flower.environment  # noqa: F401  before Flower and Ray read it
