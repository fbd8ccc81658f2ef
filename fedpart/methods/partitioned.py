"""Partitioned networks (Mlodozeniec, Reisser, Louizos 2023), federated (App. J) and centralised (I.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpart.methods.base import METHODS, Method
from fedpart.task.jobs import Job, Step

if TYPE_CHECKING:
    from fedpart.centralised.training import Training
    from fedpart.federated.protocol import Protocol


@METHODS.register("partitioned")
class Partitioned(Method):
    """w_k is trained on chunks 1..k through w_s^(k), psi on chunk k through w_s^(k-1), which never saw it.

    Federated, a client of chunk k trains each w_j, j = k..C, from the server's values (Eq. 25); if k >= 2 it
    also takes the gradient of psi (Eq. 26, with w_1..w_(k-1) alone in the subnetwork: open point 8).
    Centralised, an iteration draws k ~ Cat(u) and steps w_k (Eq. 3), then k ~ Cat(u_2..u_C) and steps psi
    (Eq. 4).
    """

    def plan(self, protocol: Protocol, client: int, round: int) -> list[Job]:
        k = protocol.chunk(client)
        jobs = [Job(subnetwork=j, partition=j) for j in range(k, len(protocol.chunks) + 1)]
        if k >= 2 and protocol.task.psi_space.size:
            jobs.append(Job(subnetwork=k - 1, psi=True))
        return jobs

    def steps(self, training: Training, iteration: int, rng: np.random.Generator) -> list[Step]:
        k = 1 + int(rng.choice(len(training.shares), p=np.array(training.shares)))
        return [Step(Job(subnetwork=k, partition=k), 1, k), *self.psi_steps(training, iteration, rng)]

    def psi_steps(self, training: Training, iteration: int, rng: np.random.Generator) -> list[Step]:
        """The step of psi in a centralised iteration, if it has one."""
        u = np.array(training.shares[1:])
        if not (len(u) and training.steps_psi(iteration)):
            return []
        k = 2 + int(rng.choice(len(u), p=u / u.sum()))
        return [Step(Job(subnetwork=k - 1, psi=True), k, k)]
