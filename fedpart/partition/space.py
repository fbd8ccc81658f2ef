"""All trainable numbers of a module as one flat vector, and back."""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import reduce
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fedpart.partition.inspection import check_supported, stacked_parameters
from fedpart.registry import nearest

Fold = Literal["product", "sum"]


@dataclass(frozen=True)
class Entry:
    """One parameter's place in the flat vector, under its first name in the module (tied weights appear
    once)."""

    name: str
    shape: torch.Size
    offset: int
    copies: int
    fold: Fold | None
    layer: str
    private: bool = False

    @property
    def size(self) -> int:
        """Numbers it occupies in the flat vector, copies included."""
        return self.copies * self.shape.numel()


class ParameterSpace:
    """The trainable numbers of ``module`` as one flat vector of ``size`` elements, in the module's own order.

    Scale and bias of normalisation layers occupy one vector per partition (App. I.2). A module of your own
    declares further stacked parameters in a class attribute ``stacked_parameters = {"scale": "product"}``, or
    name them here. It may also declare ``private_parameters``, patterns of names (``*norm*``): where there
    are networks of several sizes, these belong to this one alone.

    Args:
        module: any nn.Module without layers that tie examples together (BatchNorm with batch statistics).
            Frozen parameters (``requires_grad=False``) are constants, and not in the space.
        chunks: C, the number of partitions.
        stacked: further stacked parameters, ``{"block.scale": "product"}``.
        exclude: names of parameters that are not weights (psi).
        only: if given, the names that are in the space; nothing is stacked then (used for psi).

    Raises:
        ValueError: a layer that cannot be partitioned (the message says what to use), or an unknown name.
    """

    def __init__(
        self, module: nn.Module, chunks: int = 1, *, stacked: Mapping[str, Fold] | None = None,
        exclude: Collection[str] = (), only: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        if only is None:
            check_supported(module, chunks)
        folds = _folds(module, stacked or {}) if only is None else {}
        self.chunks = chunks
        private = getattr(module, "private_parameters", ())
        entries, values, offset = [], [], 0
        constants = set(exclude)
        for name, parameter in module.named_parameters():
            if name in constants or (only is not None and name not in only):
                continue
            if not parameter.requires_grad:
                constants.add(name)
                continue
            fold = folds.get(name)
            layer, alone = name.rpartition(".")[0], any(fnmatch(name, pattern) for pattern in private)
            entry = Entry(name, parameter.shape, offset, chunks if fold else 1, fold, layer, alone)
            entries.append(entry)
            numbers = parameter.detach().reshape(-1)
            values += [numbers, numbers.new_full((entry.size - len(numbers),), float(fold == "product"))]
            offset += entry.size
        names = {entry.name for entry in entries}
        if missing := [name for name in (*folds, *(only or ())) if name not in names | constants]:
            raise ValueError(f"The module has no parameter {missing[0]!r}: {nearest(missing[0], names)}")
        if not entries and only is None:
            fault = "The module has no trainable parameters, so there is nothing to partition"
            remedy = "call module.requires_grad_(True) on the layers that shall be trained"
            raise ValueError(f"{fault}; {remedy}.")
        self.entries: tuple[Entry, ...] = tuple(entries)
        self.size = offset
        self._sizes = [entry.size for entry in entries]
        self._initial = torch.cat(values) if values else torch.zeros(0)

    def initial(self) -> Tensor:
        """The module's values at construction, flat ``[size]``; later stacked copies are the identity."""
        return self._initial.clone()

    def identity(self) -> Tensor:
        """Zeros ``[size]``, but ones for stacked scales, whose absent copies must not change the product."""
        flat = torch.zeros_like(self._initial)
        for entry in self.entries:
            if entry.fold == "product":
                flat[entry.offset : entry.offset + entry.size] = 1
        return flat

    def stacked(self) -> Tensor:
        """Which numbers are copies of stacked parameters (App. I.2), ``[size]``, bool; with one chunk too."""
        return torch.cat([torch.full((entry.size,), entry.fold is not None) for entry in self.entries])

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """The module's named tensors from ``flat [size]``: views, with stacked copies folded; differentiable.
        Use with ``torch.func.functional_call``."""
        parts = torch.split(flat, self._sizes)
        return {entry.name: _fold(part, entry) for entry, part in zip(self.entries, parts, strict=True)}

    def pull_back(self, flat: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        """``[size]``: the gradient of a function of :meth:`tensors` at ``flat [size]``, from those with
        respect to each tensor, in the order of ``entries``."""
        parts: list[Tensor] = []
        for entry, gradient in zip(self.entries, gradients, strict=True):
            if entry.fold is None:
                parts.append(gradient.reshape(-1))
            elif entry.fold == "sum":
                parts += [gradient.reshape(-1)] * entry.copies
            else:
                copies = flat[entry.offset : entry.offset + entry.size].view(entry.copies, -1)
                others = [copies[torch.arange(entry.copies) != i].prod(0) for i in range(entry.copies)]
                parts += [gradient.reshape(-1) * other for other in others]
        return torch.cat(parts)

    def narrowed(self, kept: Tensor) -> "ParameterSpace":
        """The space of the numbers that are ``kept [size]``, bool: of each parameter, none stacked, those at
        some indices of each dimension."""
        entries, offset = [], 0
        for entry in self.entries:
            block = kept[entry.offset : entry.offset + entry.size].view(entry.shape)
            by_dimension = (block.movedim(d, 0).reshape(length, -1) for d, length in enumerate(entry.shape))
            shape = torch.Size(int(indices.any(1).sum()) for indices in by_dimension)
            entries.append(replace(entry, shape=shape, offset=offset))
            offset += shape.numel()
        space = copy.copy(self)
        space.entries, space.size = tuple(entries), offset
        space._sizes, space._initial = [entry.size for entry in entries], self._initial[kept]
        return space


def _folds(module: nn.Module, stacked: Mapping[str, Fold]) -> dict[str, Fold]:
    """How each stacked parameter folds, by its first name (a tied parameter has several)."""
    first = {id(p): name for name, p in module.named_parameters()}
    names = {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
    folds: dict[str, Fold] = {}
    for name, fold in {**stacked_parameters(module), **stacked}.items():
        if fold not in get_args(Fold):
            raise ValueError(f"A stacked parameter combines by 'product' or 'sum', not {fold!r} ({name!r}).")
        folds[names.get(name, name)] = fold
    return folds


def _fold(part: Tensor, entry: Entry) -> Tensor:
    if entry.fold is None:
        return part.view(entry.shape)
    copies = part.view(entry.copies, *entry.shape).unbind(0)
    return reduce(torch.mul if entry.fold == "product" else torch.add, copies)
