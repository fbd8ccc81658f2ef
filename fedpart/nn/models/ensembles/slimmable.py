"""Slimmable networks: one set of weights, of which narrower networks use leading slices (Yu et al. 2019)."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedpart.nn.models.ensembles.ensemble import (
    ENSEMBLES,
    NORMS,
    BuildMember,
    Ensemble,
    Member,
    layers_of,
    share,
)
from fedpart.registry import nearest


class Leading(nn.Module):
    """The leading corner of a tensor, of the given shape."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, whole: Tensor) -> Tensor:
        """``whole``, each of whose dimensions is at least as long."""
        return whole[tuple(slice(length) for length in self.shape)].contiguous()


def nested(members: Sequence[nn.Module], own_norms: bool) -> int:
    """Have members use leading slices of the widest one's parameters in the place of their own.

    Args:
        members: networks, which are changed. Each layer of a narrower one has the name of a layer of the
            widest one, whose parameters are at least as long in every dimension.
        own_norms: whether each keeps the scales and biases of its norms.

    Returns:
        The number of the widest one.
    """
    sizes = [sum(parameter.numel() for parameter in member.parameters()) for member in members]
    largest = sizes.index(max(sizes))
    wide = layers_of(members[largest])
    for number, member in enumerate(members):
        if number == largest:
            continue
        for path, layer in layers_of(member).items():
            if own_norms and isinstance(layer, NORMS):
                continue
            if path not in wide:
                raise ValueError(
                    f"A member has a layer {path!r} that the widest one does not have: {nearest(path, wide)}"
                )
            for name, parameter in list(layer.named_parameters(recurse=False)):
                whole = getattr(wide[path], name)
                _slice(layer, name, parameter, whole, path)
    return largest


def _slice(layer: nn.Module, name: str, parameter: Tensor, whole: Tensor, path: str) -> None:
    if parameter.shape == whole.shape:
        share(layer, name, whole)
        return
    fits = parameter.ndim == whole.ndim and all(
        length <= most for length, most in zip(parameter.shape, whole.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"The {name} of {path!r} is {list(parameter.shape)} in one member and {list(whole.shape)} in the "
            f"widest one, so that it is no leading slice; use members that differ in their width alone."
        )
    parametrize.register_parametrization(layer, name, Leading(parameter.shape), unsafe=True)
    share(getattr(layer.parametrizations, name), "original", whole)


def slimmable(members: Sequence[nn.Module], own_norms: bool = True) -> Ensemble:
    """Networks of several widths with one set of weights; every step trains all of them.

    Args:
        members: see :func:`nested`. The widest one is as it was.
        own_norms: whether each width has its own norms, as published; else those are slices, too.
    """
    nested(members, own_norms)
    return Ensemble(members)


@ENSEMBLES.register("slimmable")
def _slimmable(build: BuildMember, members: Sequence[Member], own_norms: bool = True) -> Ensemble:
    return slimmable([build(member) for member in members], own_norms)
