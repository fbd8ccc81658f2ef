"""The Flower ServerApp that pyproject.toml names."""

from simulations.running.server_app import app

__all__ = ["app"]
