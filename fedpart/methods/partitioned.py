"""Partitioned networks in federated learning (Mlodozeniec, Reisser, Louizos 2023, App. J)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpart.jobs import Job
from fedpart.methods.base import METHODS, Method

if TYPE_CHECKING:
    from fedpart.protocol import Protocol


@METHODS.register("partitioned")
class Partitioned(Method):
    """A client of chunk k trains each w_j, j = k..C, through w_s^(j), from the server's values (Eq. 25).

    If k >= 2 it also takes the gradient of psi through w_s^(k-1), which has never seen chunk k (Eq. 26, with
    w_1..w_(k-1) alone in the subnetwork: open point 8).
    """

    def plan(self, protocol: Protocol, client: int, round: int) -> list[Job]:
        k = protocol.chunk(client)
        jobs = [Job(subnetwork=j, partition=j) for j in range(k, len(protocol.chunks) + 1)]
        if k >= 2 and protocol.task.psi_space.size:
            jobs.append(Job(subnetwork=k - 1, psi=True))
        return jobs
