"""Flower: the strategy and the client app for Flower, and all that is said between them.

What a Flower app of your own imports: :class:`.FedPart` in its ServerApp, :func:`.make_client_app` for its
ClientApp. Each is loaded when it is asked for: a client needs no strategy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import fedpart.flower.environment  # noqa: F401  before Flower reads it

if TYPE_CHECKING:
    from fedpart.flower.client import make_client_app
    from fedpart.flower.nodes import NodesError
    from fedpart.flower.strategy import FedPart

__all__ = ["FedPart", "NodesError", "make_client_app"]

_HOMES = {"FedPart": "strategy", "NodesError": "nodes", "make_client_app": "client"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
