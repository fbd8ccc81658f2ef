"""Jobs: what is to be computed, as data that an engine or the centralised loop executes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """Train one partition through a subnetwork, take a psi gradient through one, or both at once.

    Attributes:
        subnetwork: k; data is scored by w_s^(k).
        partition: j, whose w_j is trained on the local shard from the server's values (Eq. 25); None: no
            training.
        psi: whether the gradient with respect to psi is taken. Without training it is the gradient at the
            server's values over the shard (Eq. 26); with it, the mean along the training steps. In its place
            comes ``Method.feedback`` where the method holds examples out.
    """

    subnetwork: int
    partition: int | None = None
    psi: bool = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Job:
        """Inverse of ``dataclasses.asdict``.

        Raises:
            ValueError: unknown fields or values of the wrong type.
        """
        try:
            job = cls(**data)
        except TypeError as error:
            raise ValueError(f"This is not a job: {data!r} ({error}).") from error
        whole = type(job.subnetwork) is int and (job.partition is None or type(job.partition) is int)
        if not (whole and type(job.psi) is bool):
            raise ValueError(f"This is not a job: {data!r}.")
        return job


def reported(jobs: Iterable[Job]) -> Job:
    """The job whose loss a client reports: of the largest subnetwork that is trained, or else of any."""
    return max(jobs, key=lambda job: (job.partition is not None, job.subnetwork))


@dataclass(frozen=True)
class Step:
    """One optimiser step of centralised training: a job on a batch from chunks ``first..last``.

    Attributes:
        job: what is computed; its results step w_j and psi.
        first, last: chunks 1..C.
        learning_rate: of the parameters in this step; None: the settings', under their schedule.
    """

    job: Job
    first: int
    last: int
    learning_rate: float | None = None
