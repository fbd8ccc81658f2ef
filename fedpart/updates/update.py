"""Updates: what a client sends back, its weighted sum over a cohort, and the step that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedpart.training.state import ModelState


@dataclass
class Update:
    """One client's upload, or a weighted sum of several.

    Attributes:
        deltas: per cell (:attr:`.Partition.cells`; w_j where clients have one network) its change,
            ``[size]``; only of partitions that were trained.
        psi: gradient of the mean negative log-likelihood with respect to psi, ``[P]``, or None.
        weights: weight of each cell's delta.
        psi_weight: weight of the psi gradient: its examples, since L_ML is a sum over them (Eq. 26); 1 where
            clients weigh the same, for privacy or a defence.
        total_weight: weight of the client whether it contributed to a partition or not.
        examples: number of examples behind ``loss``.
        loss: mean training loss through the largest subnetwork, nats (a sum weighted by examples in a sum).
        unseen_loss: minus the client's term of L_ML per example, nats (a sum in a sum, as ``loss``).
        unseen_examples: number of examples behind ``unseen_loss``; 0: the client was not asked for it.
        visited, seconds: examples whose gradients were taken, each time, and how long all took; 0: not told.
        clients: how many clients are in the sum.
        encoded: per cell the bytes whose numbers ``deltas`` are, with an upload codec; not of a sum.
        lost: per cell what these bytes leave out, with error feedback, while the client makes its update.
    """

    deltas: dict[int, Tensor] = field(default_factory=dict)
    psi: Tensor | None = None
    weights: dict[int, float] = field(default_factory=dict)
    psi_weight: float = 0.0
    total_weight: float = 0.0
    examples: int = 0
    loss: float = 0.0
    unseen_loss: float = 0.0
    unseen_examples: int = 0
    visited: int = 0
    seconds: float = 0.0
    clients: int = 1
    encoded: dict[int, Tensor] = field(default_factory=dict)
    lost: dict[int, Tensor] = field(default_factory=dict)

    def weigh(self, weight: float, psi_weight: float | None = None) -> Update:
        """Turn a client's update into a term of the sum, in place.

        Args:
            weight: of its deltas.
            psi_weight: of its psi gradient; None: its examples.
        """
        self.encoded.clear()
        for j, delta in self.deltas.items():
            delta.mul_(weight)
            self.weights[j] = weight
        if self.psi is not None:
            self.psi_weight = float(self.examples) if psi_weight is None else psi_weight
            self.psi.mul_(self.psi_weight)
        self.total_weight = weight
        self.loss *= self.examples
        self.unseen_loss *= self.unseen_examples
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
        self.unseen_loss += other.unseen_loss
        self.unseen_examples += other.unseen_examples
        self.visited += other.visited
        self.seconds += other.seconds
        self.clients += other.clients
        return self


def descend(state: ModelState, total: Update) -> None:
    """Step the server on whatever has a contributor: a cell, and psi; the sum's deltas are used up.

    Each cell, which is w_j where clients have one network, moves along its mean change, which stands for
    minus a gradient, psi against its mean gradient.
    """
    for j in sorted(total.deltas):
        state.optimiser.step(j - 1, total.deltas.pop(j).div_(-total.weights[j]))
    if total.psi is not None:
        state.optimiser_psi.step(0, total.psi / total.psi_weight)
