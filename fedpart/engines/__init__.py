"""Engines: who computes a cohort's clients, and in which processes; they differ in nothing else."""

import fedpart.engines.automatic  # noqa: F401  registers its execution, as those that it imports
from fedpart.engines.local import EXECUTIONS, LocalEngine
from fedpart.engines.paced import local_engine

__all__ = ["EXECUTIONS", "LocalEngine", "local_engine"]
