"""Engines execute jobs, and differ in nothing else."""

from fedpart.engines.local import LocalEngine

__all__ = ["LocalEngine"]
