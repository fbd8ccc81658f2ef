"""The ServerApp that pyproject.toml names; without this checkout, name simulations.flower.server:app."""

from simulations.flower.server import app

__all__ = ["app"]
