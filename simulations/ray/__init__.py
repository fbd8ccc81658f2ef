"""Ray: clients on Ray actors, on one machine or a cluster."""

import fedpart.flower.environment  # noqa: F401  before Flower and Ray read it
