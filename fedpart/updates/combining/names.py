"""Names such as ``partitioned+scaffold``: a method, and the ways in which its clients are combined."""

import inspect
from collections.abc import Mapping
from typing import Any

from fedpart.checks import require
from fedpart.training.optimisers import ServerSettings
from fedpart.updates.combining.base import COMBINATIONS, Combination


def spelled(name: str) -> tuple[str, list[str]]:
    """``partitioned+scaffold``: the method, and how clients are combined; ``scaffold`` is FedAvg so."""
    method, *ways = name.split("+") if isinstance(name, str) else [name]
    return ("fedavg", [method, *ways]) if method in COMBINATIONS else (method, ways)


def is_personal(name: str) -> bool:
    """Whether clients have weights of their own with this method, in the ways that are registered."""
    return any(getattr(COMBINATIONS.get(way), "personal", False) for way in spelled(name)[1])


def combined(
    name: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], Combination, ServerSettings | None]:
    """The options of ``name`` that are the method's, what clients do, and the server's optimiser if it says.

    Raises:
        ValueError: an unknown way, or two that answer one question; one sentence.
    """
    left, clients, servers = dict(options), list[Combination](), list[ServerSettings]()
    for way in spelled(name)[1]:
        takes = inspect.signature(COMBINATIONS.resolve(way)).parameters
        made = COMBINATIONS.make(way, {key: left.pop(key) for key in [*left] if key in takes})
        if isinstance(made, Combination):
            _check(made, way)
        (clients if isinstance(made, Combination) else servers).append(made)
    excluded = f"{name!r} has two ways to combine that exclude each other; leave one of them out."
    require(len(clients) < 2 and len(servers) < 2, excluded)
    client = next(iter(clients), Combination())
    return left, client, next(iter(servers), client.server)


def _check(made: Combination, way: str) -> None:
    """Refuse attributes that would do nothing without others."""
    said = f"The way to combine {way!r} has"
    owned = type(made).stays is not Combination.stays or made.tie is not None or made.head_epochs
    require(made.personal or not owned, f"{said} stays(), tie or head_epochs, which need personal = True.")
    require(made.sees or not made.variates, f"{said} keeps, which needs sees = True, or personal = True.")
    server = (
        f"{said} the server {made.server!r}; give settings, such as fedpart.SGDSettings(learning_rate=1.0)."
    )
    require(made.server is None or isinstance(made.server, ServerSettings), server)
