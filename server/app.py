"""The ServerApp that pyproject.toml names; without this checkout, name simulations.running.server_app:app."""

from simulations.running.server_app import app

__all__ = ["app"]
