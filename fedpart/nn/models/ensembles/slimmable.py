"""Slimmable networks: one set of weights, of which narrower networks use leading slices (Yu et al. 2019)."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedpart.checks import require
from fedpart.nn.models.ensembles.ensemble import (
    ENSEMBLES,
    NORMS,
    BuildMember,
    Ensemble,
    Member,
    layers_of,
    share,
)
from fedpart.randomness.noise import order
from fedpart.registry import nearest


class Leading(nn.Module):
    """The leading corner of a tensor, of the given shape."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, whole: Tensor) -> Tensor:
        return whole[tuple(slice(length) for length in self.shape)].contiguous()


def nested(members: Sequence[nn.Module], own_norms: bool) -> int:
    """Have members use leading slices of the widest one's parameters, in place; the number of the widest one.
    With ``own_norms`` each keeps the scales and biases of its norms."""
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
                _slice(layer, name, parameter, getattr(wide[path], name), path)
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
    """Networks of several widths with one set of weights, see :func:`nested`; every step trains all of
    them."""
    ensemble = Ensemble(members)
    nested(members, own_norms)
    return ensemble


@ENSEMBLES.register("slimmable")
def _slimmable(build: BuildMember, members: Sequence[Member], own_norms: bool = True) -> Ensemble:
    return slimmable([build(member) for member in members], own_norms)


class UniversallySlimmable(Ensemble):
    """Networks of several widths, each once, with one set of weights, norms included. A pass of training
    computes the largest and the smallest one, and ``drawn - 2`` others by chance (the sandwich rule), in the
    order of members; any other pass all."""

    def __init__(self, members: Sequence[nn.Module], drawn: int = 4) -> None:
        sizes = [sum(parameter.numel() for parameter in member.parameters()) for member in members]
        count = f"A step trains 2 to {len(members)} members; its option drawn is {drawn}."
        require(2 <= drawn <= len(members), count)
        if len(set(sizes)) < len(sizes):
            raise ValueError("Two members of a universally slimmable network have one width; give each once.")
        self.ends = (nested(members, own_norms=False), sizes.index(min(sizes)))
        super().__init__(members)
        self.drawn = drawn

    def forward(self, x: Tensor, *, only: Sequence[int] | None = None) -> Tensor:
        if self.training and only is None and self.drawn < len(self):
            others = [i for i in range(len(self)) if i not in self.ends]
            places = order(len(others), x).argsort()[: self.drawn - 2].tolist()
            only = sorted({*self.ends, *(others[place] for place in places)})
        return super().forward(x, only=only)


@ENSEMBLES.register("universally_slimmable")
def universally_slimmable(
    build: BuildMember, members: Sequence[Member], drawn: int = 4
) -> UniversallySlimmable:
    """:class:`UniversallySlimmable` of members that are described."""
    return UniversallySlimmable([build(member) for member in members], drawn)
