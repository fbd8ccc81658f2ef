"""What the library calls data: a ``Dataset`` of tensors, and the three ``Splits`` of one source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = Tensor | NDArray[np.int64] | Sequence[int]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples held in memory.

    Args:
        inputs: [n, ...], floating point (float32 unless moved), or int64 for tokens. Images are [n, c, h, w]
            in [0, 1].
        targets: [n] classes, kept as int64; or [n, ...] floating-point values for regression.
        groups: None, or [n] floating-point attribute that a split may use, e.g. the rotation of each image in
            radians.

    Raises:
        TypeError: an argument is not a tensor.
        ValueError: lengths differ, a dtype does not fit, a value is not finite, or a label is negative.
    """

    inputs: Tensor
    targets: Tensor
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        parts = {"inputs": self.inputs, "targets": self.targets, "groups": self.groups}
        tensors = {name: part for name, part in parts.items() if part is not None}
        for name, part in tensors.items():
            if not isinstance(part, Tensor):
                raise TypeError(
                    f"Dataset {name} must be a torch tensor, got {type(part).__name__}; use torch.as_tensor."
                )
            if part.dim() == 0:
                raise ValueError(f"Dataset {name} must have one entry per example, got a single number.")
        lengths = {name: len(part) for name, part in tensors.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"Dataset parts differ in length: {lengths}; every example needs one entry in each."
            )
        if not (self.inputs.is_floating_point() or self.inputs.dtype == torch.int64):
            raise ValueError(
                f"Dataset inputs are {self.inputs.dtype}; use float32 for images, int64 for tokens."
            )
        if self.groups is not None and not (self.groups.is_floating_point() and self.groups.dim() == 1):
            raise ValueError(
                f"Dataset groups must be [n] floating point, got {self.groups.dtype} "
                f"{list(self.groups.shape)}; use one number per example."
            )
        for name, part in tensors.items():
            if part.is_floating_point() and not bool(torch.isfinite(part).all()):
                bad = int((~torch.isfinite(part)).reshape(len(part), -1).any(1).sum())
                raise ValueError(
                    f"Dataset {name} hold NaN or infinite values in {bad} of {len(part)} examples; "
                    f"remove or repair them."
                )
        if not self.targets.is_floating_point():
            self._check_labels()

    def _check_labels(self) -> None:
        given = self.targets
        if given.dim() != 1 or given.dtype == torch.bool or given.is_complex():
            raise ValueError(
                f"Class labels must be [n] integers, got {given.dtype} {list(given.shape)}; "
                f"use one class number per example."
            )
        labels = given.long()
        if len(labels) and int(labels.min()) < 0:
            raise ValueError(
                f"Class labels must be 0 or more, got {int(labels.min())}; number the classes from 0."
            )
        object.__setattr__(self, "targets", labels)

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, indices: Indices) -> Dataset:
        """The examples at ``indices`` ([m] integers), in that order, as a copy."""
        index = torch.as_tensor(indices, dtype=torch.int64, device=self.targets.device)
        groups = None if self.groups is None else self.groups[index]
        return Dataset(self.inputs[index], self.targets[index], groups)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Dataset:
        """On ``device``, with floating-point tensors in ``dtype``; labels and tokens stay int64.

        Itself, if that is how it is.
        """
        before = (self.inputs, self.targets, self.groups)
        moved = [
            None if part is None else part.to(device, dtype if part.is_floating_point() else None)
            for part in before
        ]
        if all(new is old for new, old in zip(moved, before, strict=True)):
            return self
        return Dataset(*moved)  # type: ignore[arg-type]  # None for groups at most


@dataclass(frozen=True, eq=False)
class Splits:
    """One source of data, split for an experiment.

    Args:
        train, validation, test: three ``Dataset`` objects.
        num_classes: classes that labels may name, 0..num_classes-1; for regression the number of outputs.
        classes: their names, for people; empty where the numbers say it all.

    Raises:
        TypeError: a part is not a ``Dataset``.
        ValueError: ``num_classes`` is below 1, the training set is empty, a label lies outside the classes,
            or the names are fewer or more than these.
    """

    train: Dataset
    validation: Dataset
    test: Dataset
    num_classes: int
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_classes < 1:
            raise ValueError(f"num_classes must be 1 or more, got {self.num_classes}.")
        if self.classes and len(self.classes) != self.num_classes:
            raise ValueError(
                f"There are {len(self.classes)} names for {self.num_classes} classes; give one for each, or "
                f"none."
            )
        for name, part in self.parts().items():
            if not isinstance(part, Dataset):
                raise TypeError(f"The {name} part of Splits must be a Dataset, got {type(part).__name__}.")
            check_labels(part, self.num_classes, name)
        if not len(self.train):
            raise ValueError("The training set is empty; a data set needs at least one training example.")

    def parts(self) -> dict[str, Dataset]:
        """The three data sets by name, training first."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


Examples = Dataset | tuple[Tensor, Tensor]  # what a caller may hand over as data


def as_dataset(given: Examples) -> Dataset:
    """A data set, or ``(inputs, targets)``, as a data set.

    Raises:
        TypeError, ValueError: see :class:`Dataset`; or it is neither.
    """
    if isinstance(given, Dataset):
        return given
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return Dataset(*given)
    raise ValueError(
        f"Data are a Dataset or the two tensors (inputs, targets), got {_kind(given)}; put the examples into "
        f"tensors, one row each."
    )


def _kind(given: Any) -> str:
    name = type(given).__name__
    return f"a {name} of {len(given)}" if isinstance(given, (tuple, list)) else f"a {name}"


def check_labels(dataset: Dataset, num_classes: int, name: str = "data") -> None:
    """Refuse class labels of ``num_classes`` or more (floating-point targets pass).

    Raises:
        ValueError: names how many labels lie outside the classes, and the largest.
    """
    if dataset.targets.is_floating_point() or not len(dataset):
        return
    outside = int((dataset.targets >= num_classes).sum())
    if outside:
        raise ValueError(
            f"{outside} of {len(dataset)} labels of the {name} set lie outside the {num_classes} classes "
            f"0..{num_classes - 1} (the largest is {int(dataset.targets.max())}); "
            f"correct num_classes or the labels."
        )
