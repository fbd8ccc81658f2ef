"""What the library calls data: a ``Dataset`` of tensors, and the three ``Splits`` of one source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart.checks import require
from fedpart.trees import Tree, first_leaf, leaves, map_leaves, tensors_in

if TYPE_CHECKING:
    from fedpart.data.preprocessing.base import Preprocessing

Indices = Tensor | NDArray[np.int64] | Sequence[int] | slice


def places_of(indices: Indices, examples: int) -> Tensor:
    """What chooses some of so many examples, see :meth:`Dataset.subset`, as ``[m]`` int64."""
    index = torch.as_tensor(range(examples)[indices] if isinstance(indices, slice) else indices)
    if index.dtype == torch.bool:
        fault = f"A mask of examples is [{examples}] bool, got {[*index.shape]}; give one entry for each"
        require(index.shape == (examples,), f"{fault}.")
        index = index.nonzero().flatten()
    other = index.is_floating_point() or index.is_complex() or index.dtype == torch.uint8  # once a mask
    integers = not other or not index.numel()
    kind = f"{index.dtype} {[*index.shape]}"
    require(integers and index.ndim == 1, f"Examples are chosen by [m] integers or [n] bool, got {kind}.")
    return index.long()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples held in memory.

    Args:
        inputs: [n, ...], floating point (float32 unless moved), or int64 for tokens. Images are [n, c, h, w]
            in [0, 1]. Or a dict, tuple or list of such, as the network takes them; there, masks may be bool.
        targets: [n] classes, kept as int64; [n, ...] floating-point values for regression; [n, T] classes of
            tokens or labels; or a tree of such.
        groups: None, or [n] floating-point attribute that a split may use, e.g. the rotation of each image in
            radians.
        evaluation: None, or what a client scores the network on if its ``evaluation_share`` is None: its own
            test examples. No copy has them: :meth:`subset`, :meth:`relabelled`, :meth:`to`.
        clients: None, or [n] int64, the number of the client that each example belongs to, 0..; what a data
            set that knows its clients says. See :func:`.by_client`.

    Raises:
        TypeError: an argument is not a tensor.
        ValueError: lengths differ, a dtype does not fit, a value is not finite, or a label or a client's
            number is negative.
    """

    inputs: Tree
    targets: Tree
    groups: Tensor | None = None
    evaluation: Dataset | None = None
    clients: Tensor | None = None

    def __post_init__(self) -> None:
        parts = {name: getattr(self, name) for name in ("inputs", "targets", "groups", "clients")}
        held = {name: part for name, part in parts.items() if part is not None}
        tensors = {name: leaf for kind, part in held.items() for name, leaf in leaves(part, kind)}
        for name in ("inputs", "targets"):
            if not any(True for _ in leaves(parts[name])):
                raise ValueError(f"Dataset {name} hold no tensor; give at least one, a row per example.")
        for name, part in tensors.items():
            if not isinstance(part, Tensor):
                remedy = "make numbers of text" if isinstance(part, str) else "use torch.as_tensor"
                if hasattr(part, "to_numpy"):  # of pandas or polars
                    remedy = "write data.to_numpy(), of inputs and targets alike"
                fault = f"Dataset {name} must be a torch tensor, got {type(part).__name__}"
                raise TypeError(f"{fault}; {remedy}.")
            if (way_out := _unusable(part)) is not None:
                raise ValueError(f"Dataset {name} is {way_out}.")
            require(part.dim() != 0, f"Dataset {name} must have one entry per example, got a single number.")
        lengths = {name: len(part) for name, part in tensors.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"Dataset parts differ in length: {lengths}; every example needs one in each.")
        for name, part in leaves(self.inputs, "inputs"):
            mask = part.dtype == torch.bool and part is not self.inputs
            if not (part.is_floating_point() or part.dtype == torch.int64 or mask):
                remedy = "use float32 for images, int64 for tokens"
                raise ValueError(f"Dataset {name} are {part.dtype}; {remedy}.")
        if (groups := self.groups) is not None and not (groups.is_floating_point() and groups.dim() == 1):
            kind = f"{groups.dtype} {list(groups.shape)}"
            raise ValueError(f"Dataset groups must be [n] floating point, got {kind}.")
        if (owners := self.clients) is not None:
            kind = f"{owners.dtype} {list(owners.shape)}"
            if owners.dtype != torch.int64 or owners.dim() != 1 or bool((owners < 0).any()):
                raise ValueError(f"Dataset clients must be [n] int64 >= 0, got {kind}; number them from 0.")
        for name, part in tensors.items():
            if part.is_floating_point() and not bool(torch.isfinite(part).all()):
                bad = int((~torch.isfinite(part)).reshape(len(part), -1).any(1).sum())
                fault = f"Dataset {name} hold NaN or infinite values in {bad} of {len(part)} examples"
                raise ValueError(f"{fault}; remove or repair them.")
        for name in ("inputs", "targets"):  # what made them is not trained
            if any(leaf.requires_grad for _, leaf in leaves(parts[name])):
                object.__setattr__(self, name, map_leaves(Tensor.detach, parts[name]))
        if isinstance(self.targets, Tensor) and not self.targets.is_floating_point():
            self._check_labels()

    def _check_labels(self) -> None:
        targets = self.targets
        yes_or_no = targets.dtype == torch.bool
        if targets.dim() > 1 and not targets.is_complex():  # of tokens, where some stand for none; or labels
            object.__setattr__(self, "targets", targets if yes_or_no else targets.long())
            return
        if targets.dim() != 1 or yes_or_no or targets.is_complex():
            kind = f"{targets.dtype} {list(targets.shape)}"
            raise ValueError(f"Labels must be [n] integers, got {kind}; number the classes, targets.long().")
        labels = targets.long()
        if len(labels) and int(labels.min()) < 0:
            remedy = "number the classes from 0, or make targets.float() of numbers that are no classes"
            raise ValueError(f"Labels must be 0 or more, got {int(labels.min())}; {remedy}.")
        object.__setattr__(self, "targets", labels)

    def __len__(self) -> int:
        return len(first_leaf(self.targets))

    @property
    def input_shape(self) -> Any:
        """Shape of one example: a tuple of numbers, or a tree of such."""
        return map_leaves(lambda leaf: tuple(leaf.shape[1:]), self.inputs)

    def batch(self, places: Tensor | slice, device: torch.device | None = None) -> tuple[Tree, Tree]:
        """Inputs and targets of the examples at ``places`` ([m] int64, where the data are), in that order."""
        return map_leaves(lambda leaf: leaf[places].to(device), (self.inputs, self.targets))  # type: ignore[no-any-return]

    def __getitem__(self, place: int) -> tuple[Tree, Tree]:
        """Input and target of one example, as torch's data sets have it."""
        return map_leaves(lambda leaf: leaf[place], (self.inputs, self.targets))  # type: ignore[no-any-return]

    def subset(self, indices: Indices) -> Dataset:
        """The examples at ``indices`` ([m] integers, a slice, or a mask [n] bool), in that order, as a
        copy."""
        index = places_of(indices, len(self)).to(first_leaf(self.targets).device)
        groups, clients = (None if part is None else part[index] for part in (self.groups, self.clients))
        inputs, targets = self.batch(index)
        return Dataset(inputs, targets, groups, clients=clients)

    def relabelled(self, targets: Tensor) -> Dataset:
        """The same inputs, groups and clients with other ``targets``."""
        return Dataset(self.inputs, targets, self.groups, clients=self.clients)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Dataset:
        """On ``device``, with floating-point tensors in ``dtype``; labels and tokens stay int64. Itself, if
        that is how it is."""
        before, same = (self.inputs, self.targets, self.groups, self.clients), True

        def move(leaf: Tensor | None) -> Tensor | None:
            nonlocal same
            moved = None if leaf is None else leaf.to(device, dtype if leaf.is_floating_point() else None)
            same = same and moved is leaf
            return moved

        inputs, targets, groups, clients = map_leaves(move, before)
        return self if same else Dataset(inputs, targets, groups, clients=clients)


class OnDevice:
    """Clients' data where they are computed with: brought there once, and kept there while the clients' own
    are in memory, as far as there is ``room``, in bytes; half of what is free of a GPU if not given.
    """

    def __init__(self, device: torch.device, room: int | None = None) -> None:
        free = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" and room is None else 0
        self._device, self._room = device, room or free
        self._kept = WeakKeyDictionary[Dataset, tuple[Dataset, int]]()

    def __call__(self, data: Dataset) -> Dataset:
        """``data`` on the device."""
        if data in self._kept:
            return self._kept[data][0]
        moved = data.to(self._device)
        if self._room and type(data) is Dataset:  # others are read when they are needed
            size = sum(tensor.nbytes for tensor in tensors_in((data.inputs, data.targets)))
            if sum(kept for _, kept in self._kept.values()) + size <= self._room:
                self._kept[data] = moved, size
        return moved

    def give_up(self) -> bool:
        """Keep nothing from now on, where memory is wanted for computing; whether anything was kept."""
        kept = bool(self._kept)
        self._kept.clear()
        self._room = 0
        return kept


@dataclass(frozen=True, eq=False)
class Splits:
    """One source of data, split for an experiment.

    Args:
        train, validation, test: three ``Dataset`` objects.
        num_classes: classes that labels may name, 0..num_classes-1; for regression the number of outputs.
        classes: their names, for people; empty where the numbers say it all.
        preprocessing: what has made inputs of raw examples, where that is known.
        client_names: of the clients by their numbers, for people; empty where there are only numbers.

    Raises:
        TypeError: a part is not a ``Dataset``.
        ValueError: ``num_classes`` is below 1, the training set is empty, a label lies outside the classes,
            or the names are fewer or more than these; a client has no name where others have one.
    """

    train: Dataset
    validation: Dataset
    test: Dataset
    num_classes: int
    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    client_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.num_classes >= 1, f"num_classes must be 1 or more, got {self.num_classes}.")
        if self.classes and len(self.classes) != self.num_classes:
            remedy = "give one for each"
            raise ValueError(f"There are {len(self.classes)} names for {self.num_classes} classes; {remedy}.")
        for name, part in self.parts().items():
            if not isinstance(part, Dataset):
                raise TypeError(f"The {name} part of Splits must be a Dataset, got {type(part).__name__}.")
            check_labels(part, self.num_classes, name)
            if self.client_names and part.clients is not None and len(part):
                most, names = 1 + int(part.clients.max()), len(self.client_names)
                require(most <= names, f"There are {names} names for {most} clients; give one for each.")
        require(len(self.train), "The training set is empty; a data set needs at least one training example.")

    def parts(self) -> dict[str, Dataset]:
        """The three data sets by name, training first."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def mapped(self, change: Callable[[Dataset], Dataset], **others: Any) -> Splits:
        """The three parts changed alike; ``others`` take the place of further fields."""
        parts: Any = {name: change(part) for name, part in self.parts().items()}
        return replace(self, **parts, **others)


def has_labels(dataset: Dataset) -> bool:
    """Whether its targets are one class per example."""
    targets = dataset.targets
    return isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()


def _unusable(part: Tensor) -> str | None:
    """Why examples cannot be taken out of a tensor, and what to do; None if they can."""
    if part.is_nested:
        return "a nested tensor; pad its rows to one length, torch.nested.to_padded_tensor(tensor, 0)"
    if part.layout != torch.strided:
        return f"a tensor of layout {str(part.layout).removeprefix('torch.')}; make it dense, to_dense()"
    if part.is_quantized:
        return f"a tensor of {part.dtype}; make it float32, dequantize()"
    return "a tensor without values, on the device meta; make it on the CPU" if part.is_meta else None


def check_labels(dataset: Dataset, num_classes: int, name: str = "data") -> None:
    """Refuse class labels of ``num_classes`` or more (floating-point targets pass)."""
    if not has_labels(dataset) or not len(dataset):
        return
    outside = int((dataset.targets >= num_classes).sum())
    if outside:
        raise ValueError(
            f"{outside} of {len(dataset)} labels of the {name} set lie outside the {num_classes} classes "
            f"0..{num_classes - 1} (the largest is {int(dataset.targets.max())}); "
            f"correct num_classes or the labels, or make counts real numbers (targets.float())."
        )
