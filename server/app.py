"""The Flower ServerApp that pyproject.toml names."""

from simulations.flower.server import app

__all__ = ["app"]
