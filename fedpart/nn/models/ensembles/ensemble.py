"""What an ensemble is, what its members may share, and the one whose members share nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

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
    """Several networks that see the same inputs; for the likelihood ``ensemble``.

    They may share parameters, which are tied then: each is once in the module's ``parameters()``, in one
    partition, and in one message.

    Args:
        members: M networks, which return outputs ``[B, K]``.

    Raises:
        ValueError: there are none.
    """

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        if not len(self.members):
            raise ValueError("An ensemble has no members; give it at least one network.")

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
        raise ValueError(
            f"The members of a {kind} ensemble have one architecture, but two of them differ; give one "
            f"member with times: {len(members)}, or use kind: deep."
        )
    return members[0]


def layers_of(member: nn.Module) -> dict[str, nn.Module]:
    """The layers that have parameters of their own, by name."""
    layers = dict(member.named_modules())
    return {
        name: layer for name, layer in layers.items() if any(True for _ in layer.parameters(recurse=False))
    }


def share(layer: nn.Module, name: str, parameter: Tensor) -> None:
    """Tie a parameter: ``layer`` has another layer's in the place of its own."""
    layer.register_parameter(name, parameter)  # type: ignore[arg-type]
