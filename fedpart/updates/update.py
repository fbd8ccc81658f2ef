"""Updates: what a client sends back, and their sum over a cohort in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpart.training.optimisers import joined
from fedpart.updates.refusal import Refusal

LARGEST = 1e15  # weighted by a billion examples, and squared by Adam, such values are still finite in fp32
BLOCKS = 256  # a cohort is summed in at most this many blocks of positions, whatever the number of workers


@dataclass
class Update:
    """One client's upload, or a weighted sum of several.

    Attributes:
        deltas: per partition j the change of w_j, ``[size_j]``; only partitions that were trained.
        psi: gradient of the mean negative log-likelihood with respect to psi, ``[P]``, or None.
        weights: weight of each partition's delta.
        psi_weight: weight of the psi gradient: its examples, since L_ML is a sum over them (Eq. 26); 1 where
            clients weigh the same, for privacy or a trimmed mean.
        total_weight: weight of the client whether it contributed to a partition or not.
        examples: number of examples behind ``loss``.
        loss: mean training loss through the largest subnetwork, nats (a sum weighted by examples in a sum).
        clients: how many clients are in the sum.
    """

    deltas: dict[int, Tensor] = field(default_factory=dict)
    psi: Tensor | None = None
    weights: dict[int, float] = field(default_factory=dict)
    psi_weight: float = 0.0
    total_weight: float = 0.0
    examples: int = 0
    loss: float = 0.0
    clients: int = 1

    def flat(self) -> Tensor:
        """The trained partitions as one flat vector, ascending: w_k..w_C of the upload; a copy if several."""
        return joined([self.deltas[j] for j in sorted(self.deltas)])

    def numbers(self) -> int:
        """How many numbers the upload holds."""
        return sum(d.numel() for d in self.deltas.values()) + (0 if self.psi is None else self.psi.numel())

    def clip(self, norms: Sequence[float], psi: float | None) -> None:
        """Scale down whatever is longer than its L2 norm, in place: w_j's change and the psi gradient.

        Args:
            norms: of w_1..w_C.
            psi: of the psi gradient; None: it is left as it is.
        """
        bounds = [(delta, norms[j - 1]) for j, delta in self.deltas.items()]
        if self.psi is not None and psi is not None:
            bounds.append((self.psi, psi))
        for tensor, norm in bounds:
            length = torch.linalg.vector_norm(tensor, dtype=torch.float64).item()
            if length > norm:
                tensor.mul_(norm / length)

    def weigh(self, weight: float, psi_weight: float | None = None) -> Update:
        """Turn a client's update into a term of the sum, in place.

        Args:
            weight: of its deltas.
            psi_weight: of its psi gradient; None: its examples.
        """
        for j, delta in self.deltas.items():
            delta.mul_(weight)
            self.weights[j] = weight
        if self.psi is not None:
            self.psi_weight = float(self.examples) if psi_weight is None else psi_weight
            self.psi.mul_(self.psi_weight)
        self.total_weight = weight
        self.loss *= self.examples
        return self

    def add(self, other: Update) -> Update:
        """Add another weighted update, in place; takes over its tensors where this one has none."""
        for j, delta in other.deltas.items():
            if j in self.deltas:
                self.deltas[j].add_(delta)
                self.weights[j] += other.weights[j]
            else:
                self.deltas[j], self.weights[j] = delta, other.weights[j]
        if other.psi is not None:
            self.psi = other.psi if self.psi is None else self.psi.add_(other.psi)
            self.psi_weight += other.psi_weight
        self.total_weight += other.total_weight
        self.examples += other.examples
        self.loss += other.loss
        self.clients += other.clients
        return self

    def mean_delta(self, j: int) -> Tensor:
        """Weighted mean change of w_j over the clients that trained it."""
        return self.deltas[j] / self.weights[j]


def validate(
    update: Update,
    sizes: Sequence[int],
    expected: Iterable[int],
    psi_size: int | None,
    dtype: torch.dtype | None = None,
    max_examples: int | None = None,
) -> None:
    """Check a client's update before it touches any state.

    Args:
        update: as received, not yet weighted.
        sizes: size of each partition, C of them.
        expected: the partitions that the client was asked to train.
        psi_size: P if a psi gradient was asked for, else None.
        dtype: of all numbers; float32 or float64 if not given.
        max_examples: that a client may claim; any number if not given.

    Raises:
        Refusal: says what is wrong: partitions, lengths, dtypes, non-finite or huge values, counts.
    """
    expected = sorted(expected)
    if sorted(update.deltas) != expected:
        held = sorted(update.deltas)
        raise Refusal("partitions", f"it holds partitions {held} where {expected} were asked for")
    tensors = [(f"w_{j}", update.deltas[j], sizes[j - 1]) for j in expected]
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


def summable(total: Update) -> bool:
    """Whether a sum is finite, and too small to hold a value or a loss that :func:`validate` refuses."""
    tensors = [*total.deltas.values(), *([] if total.psi is None else [total.psi])]
    return abs(total.loss) <= LARGEST and all(torch.dot(t, t).item() <= LARGEST**2 for t in tensors)


def blocks(cohort: int) -> list[range]:
    """The fixed blocks of cohort positions: contiguous, at most :data:`BLOCKS`, their sizes within one."""
    count = min(BLOCKS, cohort)
    return [range(cohort * b // count, cohort * (b + 1) // count) for b in range(count)]


def sum_updates(updates: Iterable[Update | None]) -> Update | None:
    """Sum weighted updates left to right, into the first; None stands for a client without an update.

    Summing each block of positions and then the blocks, in order, gives the same bits for any number of
    workers; at most two sums are held at a time.
    """
    total: Update | None = None
    for update in updates:
        if update is not None:
            total = update if total is None else total.add(update)
        del update  # or it would live on while the next one is made
    return total


def add_into(memory: Tensor, bounds: Sequence[int], total: Update | None, update: Update) -> Update:
    """As :func:`sum_updates` of two, with all tensors of the sum in ``memory``.

    Args:
        memory: ``[size + P]``; whatever is not in ``total`` yet is overwritten.
        bounds: w_j lies in ``memory[bounds[j - 1]:bounds[j]]``, psi after them; C + 1 of them.
        total: the sum so far, in ``memory``.
        update: what is added, weighted; changed.
    """
    for j, delta in update.deltas.items():
        new = total is None or j not in total.deltas
        place = memory[bounds[j - 1] : bounds[j]]
        update.deltas[j] = place.copy_(delta) if new else delta.to(memory.device)
    if update.psi is not None:
        new = total is None or total.psi is None
        update.psi = memory[bounds[-1] :].copy_(update.psi) if new else update.psi.to(memory.device)
    return update if total is None else total.add(update)


def sum_cohort(cohort: Sequence[int], term: Callable[[int], Update | None]) -> Update | None:
    """Sum ``term(client)`` over the cohort in its fixed order: block by block, see :func:`sum_updates`."""
    return sum_updates(
        sum_updates(term(cohort[position]) for position in block) for block in blocks(len(cohort))
    )
