"""What a client's update must be before it touches any state."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedpart.updates.errors import Refusal
from fedpart.updates.update import Update

LARGEST = 1e15  # weighted by a billion examples, and squared by Adam, such values are still finite in fp32
REACH = 1000.0  # times the largest weight: no change of a weight in one round is honest beyond


def largest_change(w: Tensor) -> float:
    """The largest change of a weight that a stranger may send: 1,000 times the largest of ``w``, or of 1."""
    low, high = (bound.item() for bound in torch.aminmax(w))
    return min(LARGEST, REACH * max(1.0, -low, high))


def validate(
    update: Update,
    weights: Mapping[int, int],
    psi_size: int | None,
    dtype: torch.dtype,
    max_examples: int,
    limit: float = LARGEST,
) -> None:
    """Check a client's update.

    Args:
        update: as received, not yet weighted.
        weights: numbers of each cell that the client was asked to train, ascending.
        psi_size: P if a psi gradient was asked for, else None.
        dtype: of all numbers.
        max_examples: that a client may claim.
        limit: the largest change of a weight; gradients of psi may be as large as they can be summed.

    Raises:
        Refusal: says what is wrong: partitions, lengths, dtypes, non-finite or huge values, counts.
    """
    if sorted(update.deltas) != list(weights):
        held = sorted(update.deltas)
        raise Refusal("partitions", f"it holds partitions {held} where {list(weights)} were asked for")
    tensors = [(f"w_{j}", update.deltas[j], size, limit) for j, size in weights.items()]
    if (update.psi is None) != (psi_size is None):
        asked = "not " if psi_size is None else ""
        raise Refusal("partitions", f"a psi gradient was {asked}asked for")
    if update.psi is not None and psi_size is not None:
        tensors.append(("the psi gradient", update.psi, psi_size, LARGEST))
    for name, tensor, size, largest in tensors:
        check_form(name, tensor.shape, tensor.dtype, size, dtype)
        if torch.dot(tensor, tensor).item() <= largest**2:
            continue  # the norm bounds every value
        low, high = (bound.item() for bound in torch.aminmax(tensor))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise Refusal("not_finite", f"{name} has values that are not finite")
        if max(-low, high) > largest:
            raise Refusal("too_large", f"{name} has values beyond {largest:g}, the most that is taken")
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
