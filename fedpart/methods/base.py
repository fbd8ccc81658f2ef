"""Method: a policy that plans clients' jobs and combines their updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fedpart.jobs import Job
from fedpart.noise import Noise
from fedpart.registry import Registry
from fedpart.task import Batch, Task
from fedpart.update import Update

if TYPE_CHECKING:
    from fedpart.federation import Federation
    from fedpart.protocol import Protocol


class Method:
    """Subclass it in a file of its own and register it: ``@METHODS.register("name")``.

    Only :meth:`plan` must be defined; the rest has the behaviour of plain federated learning.
    """

    def prepare(self, task: Task) -> Task:
        """The task as this method trains it."""
        return task

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        """Chunk proportions that the method uses, given the configured ones."""
        return tuple(chunks)

    def trained_psi(self, task: Task) -> Sequence[str]:
        """Names of the hyperparameters that are learned; the others stay frozen."""
        return task.psi_names

    def plan(self, protocol: Protocol, client: int, round: int) -> list[Job]:
        """Jobs of ``client`` in ``round`` (1..)."""
        raise TypeError(f"{type(self).__name__} does not define plan().")

    def loss(
        self, task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
    ) -> Tensor:
        """Objective of a job on one batch, minimised: a scalar, in nats."""
        return task.loss(w, psi, batch, noise)

    def combine(self, federation: Federation, total: Update) -> None:
        """Step the server's state with the cohort's sum: Adam on whatever has a contributor, w_j and psi."""
        ignore = federation.protocol.settings.non_contributors == "ignore"
        for j in sorted(total.deltas):
            weight = total.weights[j] if ignore else total.total_weight
            federation.server.step(j - 1, total.deltas[j] / -weight)
        if total.psi is not None:
            weight = total.psi_weight if ignore else total.examples
            federation.server_psi.step(0, total.psi / weight)


METHODS: Registry[type[Method]] = Registry("method")
