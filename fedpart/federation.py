"""Federation: the state of a run on the server, and one round of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedpart.protocol import Protocol
from fedpart.state import ModelState
from fedpart.update import Update


@dataclass
class RoundReport:
    """What is known of a finished round; bytes are summed over the cohort.

    Attributes:
        round: 1..; seconds: wall-clock of the round; a runner that evaluates adds that.
        train_loss: mean over the cohort's examples, nats, through each client's largest subnetwork.
        cohort: client numbers.
        psi: raw values by name; physical: in units that a person reads.
        skipped: clients without an update, with the reason.
        val_accuracy: fraction, on evaluation rounds of a classification; val_nll: nats per example.
    """

    round: int
    seconds: float
    train_loss: float | None
    cohort: list[int]
    upload_bytes: int
    download_bytes: int
    psi: dict[str, list[float]]
    physical: dict[str, float]
    skipped: list[dict[str, Any]] = field(default_factory=list)
    val_accuracy: float | None = None
    val_nll: float | None = None


class Federation(ModelState):
    """The state of a federated run.

    Args:
        protocol: the policies.

    Attributes:
        round: completed rounds; the rest is :class:`~fedpart.state.ModelState`'s.
    """

    def __init__(self, protocol: Protocol) -> None:
        settings = protocol.settings
        super().__init__(
            protocol.task,
            protocol.partition,
            settings.server,
            settings.server_psi,
            seed=settings.seed,
            device=settings.device,
        )
        self.protocol, self.agreement = protocol, protocol.agreement

    @property
    def round(self) -> int:
        """Completed rounds."""
        return self.completed

    def step(self, total: Update | None) -> None:
        """Finish a round with the cohort's weighted sum; None (nobody answered) changes nothing else."""
        if total is not None:
            self.protocol.method.combine(self, total)
        self.completed += 1

    def report(self, seconds: float, cohort: list[int], total: Update | None, upload: int, download: int,
               skipped: list[dict[str, Any]] | None = None) -> RoundReport:  # fmt: skip
        """The report of the round that :meth:`step` has just finished."""
        return RoundReport(
            round=self.round,
            seconds=seconds,
            train_loss=None if total is None else total.loss / total.examples,
            cohort=cohort,
            upload_bytes=upload,
            download_bytes=download,
            psi={name: value.flatten().tolist() for name, value in self.psi_tensors().items()},
            physical=self.task.physical(self.psi),
            skipped=skipped or [],
        )
