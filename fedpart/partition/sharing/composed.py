"""A network whose layers' weights are composed from numbers that other layers and networks have, too."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedpart.nn.layers.copying import copied
from fedpart.nn.models.ensembles.ensemble import ENSEMBLES, BuildMember, Ensemble, Member
from fedpart.registry import Registry


class Recipe(ABC):
    """How the weight of one layer is composed: plain data, no tensors."""

    @abstractmethod
    def weight(self, shared: nn.ModuleDict, own: nn.ModuleDict) -> Tensor:
        """The layer's weight, differentiable, from what networks share and from what this one has alone."""


class Values(nn.Module):
    """Numbers ``values``, of which weights are composed."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)


class Penalised(Values, ABC):
    """``values`` that add to the loss which weights are trained with."""

    @abstractmethod
    def penalty(self, values: Tensor) -> Tensor:
        """A scalar, in nats; ``values``: the present ones."""


class Composed(nn.Module):
    """A copy of a network that composes the weights of the layers in ``recipes`` before every pass, from
    numbers that are ``shared`` with other networks, and from its ``own``."""

    private_parameters = ("network.*", "own.*")

    def __init__(
        self, network: nn.Module, recipes: Mapping[str, Recipe], shared: Mapping[str, nn.Module],
        own: Mapping[str, nn.Module],
    ) -> None:  # fmt: skip
        super().__init__()
        self.network = copied(network)
        self.shared, self.own = nn.ModuleDict(shared), nn.ModuleDict(own)
        self.recipes = dict(recipes)
        for name in self.recipes:
            del self.network.get_submodule(name).weight

    def weights(self) -> dict[str, Tensor]:
        """The composed weights by the layers' names; autocast leaves them in the parameters' precision."""
        device = next(self.parameters()).device
        with torch.autocast(device.type, enabled=False):
            return {name: recipe.weight(self.shared, self.own) for name, recipe in self.recipes.items()}

    @contextmanager
    def holding(self, weights: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        """Within this context the network's layers have these weights."""
        layers = {name: self.network.get_submodule(name) for name in weights}
        try:
            for name, layer in layers.items():
                layer.weight = weights[name]
            yield self.network
        finally:
            for layer in layers.values():
                layer.__dict__.pop("weight", None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network returns."""
        with self.holding(self.weights()) as network:
            return network(*args, **kwargs)

    def plain(self) -> nn.Module:
        """A copy of the network with its present weights as plain parameters, in their own order."""
        network = copied(self.network)
        for name, weight in self.weights().items():
            layer = network.get_submodule(name)
            others = dict(layer._parameters)
            layer._parameters.clear()
            layer._parameters.update({"weight": nn.Parameter(weight.detach().clone()), **others})
        return network


def within(module: nn.Module) -> nn.Module:
    """The network whose weights are composed; a module that is not composed itself."""
    return module.network if isinstance(module, Composed) else module


def plain_name(name: str) -> str:
    """What a parameter of :func:`within` is called there, given its name in the composed network."""
    return name.removeprefix("network.")


class Sharing(ABC):
    """Subclass it in a file of its own and register it: ``@SHARINGS.register("name")``. Its options are the
    arguments of the class."""

    @abstractmethod
    def compose(
        self, networks: Sequence[nn.Module], seed: int = 0, plain: Collection[str] = ()
    ) -> list[Composed]:
        """The networks, with weights composed from shared numbers, which are in memory once; they stay as
        they are.

        Args:
            networks: of several sizes, or several members of an ensemble; layers of the same name belong
                together.
            seed: of the initial values that are drawn.
            plain: names of parameters that stay as they are, such as those that are hyperparameters.

        Raises:
            ValueError: there is nothing that they could share, or options do not fit them.
        """


SHARINGS: Registry[type[Sharing]] = Registry("kind of sharing", makes=(Sharing,))


def sharing_of(given: Mapping[str, Any]) -> Sharing:
    """What a setting ``{kind: bank, budget: 400000}`` says."""
    options = dict(given)
    if not isinstance(kind := options.pop("kind", None), str):
        raise ValueError(f"sharing needs a kind, one of {', '.join(SHARINGS.names())}, got {dict(given)}.")
    made = SHARINGS.make(kind, options)
    if not isinstance(made, Sharing):
        remedy = "derive it from that"
        raise ValueError(f"The kind of sharing {kind!r} is no fedpart.partition.sharing.Sharing; {remedy}.")
    return made


@ENSEMBLES.register("composed")
def composed(build: BuildMember, members: Sequence[Member], sharing: Mapping[str, Any]) -> Ensemble:
    """Members of any sizes, composed by a :class:`.Sharing`: ``{kind: bank, budget: 80000}``."""
    networks = [build(member) for member in members]
    seed = int(torch.randint(2**31, ()))  # as the networks' initial values
    return Ensemble(sharing_of(sharing).compose(networks, seed))
