"""What an ensemble is, what its members may share, and the one whose members share nothing."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.nn.models.base import MODELS
from fedpart.registry import Registry

NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


class Member(NamedTuple):
    """A network that a configuration describes: its ``model`` by name, and that model's ``options``."""

    model: str
    options: Mapping[str, Any]


# makes a member's network, for so many images at a time: (member) or (member, images)
BuildMember = Callable[..., nn.Module]
Kind = Callable[..., nn.Module]  # (build, members, **options) -> an Ensemble
ENSEMBLES: Registry[Kind] = Registry("kind of ensemble", makes=(nn.Module,))


class Ensemble(nn.Module):
    """M networks of outputs ``[B, K]`` that see the same inputs; for the likelihood ``ensemble``. Parameters
    that they share are tied: each is once in ``parameters()``, in one partition, and in one message."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        require(len(self.members), "An ensemble has no members; give it at least one network.")
        apart = len({id(member) for member in self.members}) == len(self.members)
        require(apart, "Two members of an ensemble are one object, so one network; make each anew.")

    def __len__(self) -> int:
        """M."""
        return len(self.members)

    def forward(self, x: Tensor, *, only: Sequence[int] | None = None) -> Tensor:
        """Outputs ``[B, M, K]`` of inputs ``[B, ...]``; with ``only`` those of some members."""
        wanted = range(len(self.members)) if only is None else only
        return torch.stack([self.members[i](x) for i in wanted], 1)


@ENSEMBLES.register("deep")
def deep(build: BuildMember, members: Sequence[Member]) -> Ensemble:
    """Networks that share nothing, each with an initial value of its own (Lakshminarayanan et al. 2017)."""
    return Ensemble(build(member) for member in members)


def equal(kind: str, members: Sequence[Member]) -> Member:
    """The member that all of them are; refused if they differ."""
    if any(member != members[0] for member in members):
        fault = f"The members of a {kind} ensemble have one architecture, but two of them differ"
        raise ValueError(f"{fault}; give one member with times: {len(members)}, or use kind: deep.")
    return members[0]


def layers_of(member: nn.Module) -> dict[str, nn.Module]:
    """The layers that have parameters of their own, by name."""
    layers = member.named_modules()
    return {name: layer for name, layer in layers if any(True for _ in layer.parameters(recurse=False))}


def share(layer: nn.Module, name: str, parameter: Tensor) -> None:
    """Tie a parameter: ``layer`` has another layer's in the place of its own."""
    layer.register_parameter(name, parameter)  # type: ignore[arg-type]


_EXAMPLE = "model_options: {members: [{model: wrn, depth: 10, width: 1, times: 4}]}"


@MODELS.register("ensemble")
def ensemble(
    num_classes: int, input_shape: tuple[int, ...], members: Sequence[Mapping[str, Any]], kind: str = "deep",
    options: Mapping[str, Any] | None = None, dropout: float | None = None, temperature: float = 0.1,
) -> nn.Module:  # fmt: skip
    """Several networks in one, for the likelihood ``ensemble``.

    Args:
        members: of each its ``model``, by name, and that model's options: ``{model: wrn, depth: 16}``;
            ``times`` stands for so many equal ones.
        kind: what they share: ``deep`` nothing, ``batch`` all but factors of rank one, ``mimo`` all but input
            and output, ``slimmable`` and ``universally_slimmable`` leading slices, ``composed`` templates or
            bases (SuperWeight Networks); or ``package.module:callable``, which is called with
            ``(build, members, **options)``.
        options: of the kind.
        dropout: initial rate of learned dropout in the members whose model takes one; None for none.
    """
    described = list(_members(members))
    require(described, f"An ensemble needs members; for instance {_EXAMPLE}.")

    def build(member: Member, images: int = 1) -> nn.Module:
        """A member's network; for several images at a time, stacked on the first dimension of one."""
        shape = (images * input_shape[0], *input_shape[1:])
        common = {"num_classes": images * num_classes, "input_shape": shape}
        known = inspect.signature(MODELS.resolve(member.model)).parameters
        wanted = {"dropout": dropout, "temperature": temperature}
        common |= {name: value for name, value in wanted.items() if name in known}
        if clash := sorted(common.keys() & member.options.keys()):
            fault = f"A member has no {clash[0]} of its own, for all of them have the same"
            raise ValueError(f"{fault}; leave it out there.")
        network: nn.Module = MODELS.make(member.model, {**member.options, **common})
        return network

    return ENSEMBLES.make(kind, {"build": build, "members": described, **(options or {})})  # type: ignore[no-any-return]


def _members(described: Sequence[Mapping[str, Any]]) -> Iterator[Member]:
    for member in described:
        if not isinstance(member, Mapping) or "model" not in member:
            raise ValueError(f"A member of an ensemble names its model, got {member!r}; write {_EXAMPLE}.")
        times = member.get("times", 1)
        if type(times) is not int or times < 1:
            raise ValueError(f"times is a whole number of members of at least 1, got {times!r}.")
        options = {key: value for key, value in member.items() if key not in ("model", "times")}
        yield from [Member(member["model"], options)] * times
