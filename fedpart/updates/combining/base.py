"""Combination: how clients are combined, apart from what a method has them learn, and its names."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor

from fedpart.checks import require
from fedpart.registry import Registry
from fedpart.task.task import Task
from fedpart.training.optimisers import ServerSettings
from fedpart.training.settings import Settings


class Combination:
    """Subclass it in a file of its own and register it: ``@COMBINATIONS.register("name")``. It is asked for
    behind a method's name, ``partitioned+name``, and by its own name for FedAvg.

    It works on each cell of the weights by itself, and keeps nothing: a client's ``own`` variate ``[size]``
    stays with the client, the ``mean`` ``[size]`` of all clients' with the server. Both are 0 at first.

    Attributes:
        pull: mu; to each gradient of a client's steps ``mu (w - w_start)`` is added.
        keeps: whether clients keep something for their next rounds: variates, or weights of their own.
        sends: whether their mean is sent along to clients.
        sees: whether the server looks at single clients' changes; so it must where clients have variates.
        personal: whether clients keep weights of their own, with which they are scored: those that
            :meth:`stays` names, or, with a ``tie``, a second network.
        tie: lambda of Ditto; None: there is no second network.
        head_epochs: passes in which what stays moves alone, before the rest moves alone.
        server: its optimiser, where the name says no other; None: the settings' ``server``.
    """

    pull: float = 0.0
    keeps: bool = False
    sends: bool = False
    sees: bool = False
    personal: bool = False
    tie: float | None = None
    head_epochs: int = 0
    server: ServerSettings | None = None

    @property
    def variates(self) -> bool:
        """Whether what clients keep follows from what they have sent."""
        return self.keeps and not self.personal

    @property
    def whole(self) -> bool:
        """Whether the server has all of a network, so that it can be scored and used."""
        return not self.personal or self.tie is not None

    def stays(self, task: Task) -> Collection[str]:
        """Names of the weights that stay with clients."""
        return ()

    def shift(self, own: Tensor, mean: Tensor | None) -> Tensor | None:
        """What else is added to each gradient, ``[size]``; None: nothing."""
        return None

    def beside(self, change: Tensor, mean: Tensor | None, length: float) -> Tensor:
        """What is averaged beside a client's change: with variates what is added to the client's own.

        Args:
            change: ``[size]`` of the client's weights; only without variates it may be changed in place.
            mean: as it was sent along; None: it was not.
            length: sum of the learning rates with which the client's gradients count in its change.

        Returns:
            ``[size]`` or ``[1]``.
        """
        raise TypeError(f"{type(self).__name__} does not define beside().")

    def step(self, change: Tensor, beside: Tensor, mean: Tensor | None) -> None:
        """On the server: alter the mean ``change``, in place; ``beside``: the mean of what is beside it."""


COMBINATIONS: Registry[Callable[..., Combination | ServerSettings]] = Registry(
    "way to combine", makes=(Combination, Settings)
)


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
    require(made.keeps or not made.personal, f"{said} personal, which needs keeps = True.")
    kind, hooks = type(made), ("shift", "beside", "step")
    acts = made.sends or any(getattr(kind, hook) is not getattr(Combination, hook) for hook in hooks)
    needs = f"{said} shift(), beside(), step() or sends, which need sees = True."
    require(made.sees or not acts, needs)
    server = (
        f"{said} the server {made.server!r}; give settings, such as fedpart.SGDSettings(learning_rate=1.0)."
    )
    require(made.server is None or isinstance(made.server, ServerSettings), server)
