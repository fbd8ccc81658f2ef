"""What a client's update must be before it touches any state."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedpart.updates.errors import Refusal
from fedpart.updates.update import Update

LARGEST = 1e15  # weighted by a billion examples, and squared by Adam, such values are still finite in fp32


def validate(
    update: Update,
    weights: Mapping[int, int],
    psi_size: int | None,
    dtype: torch.dtype | None = None,
    max_examples: int | None = None,
) -> None:
    """Check a client's update.

    Args:
        update: as received, not yet weighted.
        weights: numbers of each partition that the client was asked to train, ascending.
        psi_size: P if a psi gradient was asked for, else None.
        dtype: of all numbers; float32 or float64 if not given.
        max_examples: that a client may claim; any number if not given.

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
        _check_tensor(name, tensor, size, dtype)
    if not 1 <= update.examples < math.inf:
        raise Refusal("examples", f"it claims {update.examples} examples")
    if max_examples is not None and update.examples > max_examples:
        claims = f"it claims {update.examples} examples where max_examples is {max_examples}"
        raise Refusal("examples", claims)
    if not math.isfinite(update.loss):
        raise Refusal("loss", "its training loss is not finite")
    if abs(update.loss) > LARGEST:
        raise Refusal("loss", f"its training loss is beyond {LARGEST:g}")


def _check_tensor(name: str, tensor: Tensor, size: int, dtype: torch.dtype | None) -> None:
    if tensor.shape != (size,):
        raise Refusal("size", f"{name} has shape {tuple(tensor.shape)} where {(size,)} is expected")
    if tensor.dtype not in ((dtype,) if dtype else (torch.float32, torch.float64)):
        wanted = f" where {dtype} is expected" if dtype else ""
        raise Refusal("dtype", f"{name} has dtype {tensor.dtype}{wanted}")
    if torch.dot(tensor, tensor).item() <= LARGEST**2:
        return  # the norm bounds every value
    low, high = (bound.item() for bound in torch.aminmax(tensor))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise Refusal("not_finite", f"{name} has values that are not finite")
    if max(-low, high) > LARGEST:
        raise Refusal("too_large", f"{name} has values beyond {LARGEST:g}, which cannot be summed")
