"""fedpart: federated hyperparameter optimisation in one training run.

Partitioned networks (Mlodozeniec, Reisser, Louizos, ICLR 2023): model and differentiable hyperparameters are
learned together, without validation data and with less upload than FedAvg."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpart.public import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What :mod:`.public` offers, which imports torch: a process that only forwards messages never asks."""
    if name == "__all__" or not name.startswith("__"):
        public = import_module("fedpart.public")
        if name == "__all__" or name in public.__all__:
            return getattr(public, name)
        if name in globals():  # a room, which is there once it is imported
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
