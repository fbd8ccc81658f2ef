"""Sharing: what networks have in common, and how their layers' weights are composed from it."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from fedpart.partition.sharing.composed import Composed
from fedpart.registry import Registry


class Sharing(ABC):
    """Subclass it in a file of its own and register it: ``@SHARINGS.register("name")``.

    Its options are the arguments of the class.
    """

    @abstractmethod
    def compose(
        self, networks: Sequence[nn.Module], seed: int = 0, plain: Collection[str] = ()
    ) -> list[Composed]:
        """The networks, with weights composed from shared numbers; the modules themselves stay as they are.

        Args:
            networks: of several sizes, or several members of an ensemble; layers of the same name belong
                together.
            seed: of the initial values that are drawn.
            plain: names of parameters that stay as they are, such as those that are hyperparameters.

        Returns:
            As many; what they share is in memory once.

        Raises:
            ValueError: there is nothing that they could share, or options do not fit them.
        """


SHARINGS: Registry[type[Sharing]] = Registry("kind of sharing", makes=(Sharing,))


def sharing_of(given: Mapping[str, Any]) -> Sharing:
    """What a setting ``{kind: bank, budget: 400000}`` says.

    Raises:
        ValueError: an unknown kind, or options that it does not take.
    """
    options = dict(given)
    if not isinstance(kind := options.pop("kind", None), str):
        raise ValueError(f"sharing needs a kind, one of {', '.join(SHARINGS.names())}, got {dict(given)}.")
    made = SHARINGS.make(kind, options)
    if not isinstance(made, Sharing):
        raise ValueError(
            f"The kind of sharing {kind!r} is no fedpart.partition.sharing.Sharing; derive it from "
            f"that class."
        )
    return made
