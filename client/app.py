"""The ClientApp that pyproject.toml names; without this checkout, name simulations.flower.client:app."""

from simulations.flower.client import app

__all__ = ["app"]
