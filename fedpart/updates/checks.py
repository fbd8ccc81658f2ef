"""What a client's update must be before it touches any state."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from fedpart.updates.errors import Refusal
from fedpart.updates.update import Update

LARGEST = 1e15  # weighted by a billion examples, and squared by Adam, such values are still finite in fp32


def validate(
    update: Update, weights: Mapping[int, int], psi_size: int | None, dtype: torch.dtype, max_examples: int
) -> None:
    """Check a client's update.

    Args:
        update: as received, not yet weighted.
        weights: numbers of each cell that the client was asked to train, ascending.
        psi_size: P if a psi gradient was asked for, else None.
        dtype: of all numbers.
        max_examples: that a client may claim.

    Raises:
        Refusal: says what is wrong: partitions, lengths, dtypes, non-finite or huge values, counts.
    """
    if sorted(update.deltas) != list(weights):
        held = sorted(update.deltas)
        raise Refusal("partitions", f"it holds partitions {held} where {list(weights)} were asked for")
    tensors = [(f"w_{j}", update.deltas[j], size) for j, size in weights.items()]
    if (update.psi is None) != (psi_size is None):
        asked = "not " if psi_size is None else ""
        raise Refusal("partitions", f"a psi gradient was {asked}asked for")
    if update.psi is not None and psi_size is not None:
        tensors.append(("the psi gradient", update.psi, psi_size))
    for name, tensor, size in tensors:
        check_form(name, tensor.shape, tensor.dtype, size, dtype)
        if torch.dot(tensor, tensor).item() <= LARGEST**2:
            continue  # the norm bounds every value
        low, high = (bound.item() for bound in torch.aminmax(tensor))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise Refusal("not_finite", f"{name} has values that are not finite")
        if max(-low, high) > LARGEST:
            raise Refusal("too_large", f"{name} has values beyond {LARGEST:g}, which cannot be summed")
    if not 1 <= update.examples < math.inf:
        raise Refusal("examples", f"it claims {update.examples} examples")
    if update.examples > max_examples:
        claims = f"it claims {update.examples} examples where max_examples is {max_examples}"
        raise Refusal("examples", claims)
    for name, loss in (("training loss", update.loss), ("loss on unseen examples", update.unseen_loss)):
        if not math.isfinite(loss):
            raise Refusal("loss", f"its {name} is not finite")
        if abs(loss) > LARGEST:
            raise Refusal("loss", f"its {name} is beyond {LARGEST:g}")
    for cost in ("visited", "seconds"):
        if not 0 <= (claim := getattr(update, cost)) <= LARGEST:
            raise Refusal("malformed", f"its {cost} is {claim!r}, not between 0 and {LARGEST:g}")


def check_form(name: str, shape: tuple[int, ...], dtype: object, size: int, expected: object) -> None:
    """Refuse an array that is not ``[size]`` of the expected dtype, with a :class:`.Refusal`."""
    if shape != (size,):
        raise Refusal("size", f"{name} has shape {tuple(shape)} where {(size,)} is expected")
    if dtype != expected:
        raise Refusal("dtype", f"{name} has dtype {dtype} where {expected} is expected")
