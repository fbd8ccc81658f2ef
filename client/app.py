"""The Flower ClientApp that pyproject.toml names."""

from simulations.flower.client import app

__all__ = ["app"]
