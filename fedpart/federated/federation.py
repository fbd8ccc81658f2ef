"""Federation: the state of a run on the server, and one round of it."""

from __future__ import annotations

import copy
import shutil
import tempfile
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedpart.data.dataset import Dataset
from fedpart.federated.privacy import Privacy
from fedpart.federated.protocol import Protocol
from fedpart.federated.residuals import Residuals
from fedpart.federated.round import Round
from fedpart.pace.buffered import Buffered
from fedpart.pace.devices import Fleet
from fedpart.pace.turns import Synchronous
from fedpart.training.state import ModelState
from fedpart.updates.errors import tally
from fedpart.updates.update import Update


@dataclass
class RoundReport:
    """What is known of a finished round; bytes are summed over the cohort.

    Attributes:
        round: 1..; seconds: wall-clock of the round; a runner that evaluates adds that.
        train_loss: mean over the cohort's examples, nats, through each client's largest subnetwork.
        lml: L_ML per example, nats: mean log-likelihood of the cohort's clients of chunks k >= 2 by
            subnetwork k-1, which has never seen them (Eq. 26), at the round's start; None: there were none.
        cohort: client numbers.
        psi: raw values by name, see :func:`.told`; physical: in units that a person reads.
        skipped: clients without an update, with category and reason, see :class:`.Refusal`.
        refused: how often each category occurred: of the skipped clients, and of messages that were left
            out besides.
        replies: how many updates were taken.
        stepped: whether they were enough for a step.
        epsilon: spent so far, at the settings' delta, of a run with privacy.
        examples: whose gradients the clients of the sum have computed, counted in every epoch and job.
        client_seconds: that these clients took to compute, summed; where they are computed together, the
            round's. Both None with privacy: clients do not tell.
        val_accuracy: fraction, on evaluation rounds where there are classes; val_nll: nats per example.
        client_accuracy, client_nll: the same on what clients hold out of training, where they evaluate: means
            over all their examples.
        client_accuracy_worst_decile, client_nll_worst_decile: means over the tenth of the clients, at least
            one, with the lowest accuracy, and with the highest nll.
        client_accuracy_chunks, client_nll_chunks: for each chunk 1..C the mean over its clients' examples;
            None: there are none.
        client_accuracy_caps, client_nll_caps: the same for each cap 1..C, of the subnetworks that these
            clients compute, where there are ``caps``.
        val_accuracy_architectures, val_nll_architectures, client_accuracy_architectures,
            client_nll_architectures: by architecture, where there are ``architectures``; the others are of
            the whole network, and of all clients.
        evaluation_bytes: of the messages of the clients' evaluation, down and up.
        server_rates: the server's learning rates of the cells (w_1..w_C) and psi, where a ``hypergradient``
            steps one.
        simulated_seconds: on the simulated clock of ``devices``, from the run's beginning to the round's end;
            without evaluations.
        staleness: with buffered aggregation, how many steps the server has made since a client of the cohort
            started, on average.
    """

    round: int
    seconds: float
    train_loss: float | None
    lml: float | None
    cohort: list[int]
    upload_bytes: int
    download_bytes: int
    psi: dict[str, list[float] | dict[str, float]]
    physical: dict[str, float]
    skipped: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    replies: int = 0
    stepped: bool = True
    epsilon: float | None = None
    examples: int | None = None
    client_seconds: float | None = None
    val_accuracy: float | None = None
    val_nll: float | None = None
    val_accuracy_architectures: list[float | None] | None = None
    val_nll_architectures: list[float] | None = None
    client_accuracy: float | None = None
    client_nll: float | None = None
    client_accuracy_worst_decile: float | None = None
    client_accuracy_chunks: list[float | None] | None = None
    client_accuracy_caps: list[float | None] | None = None
    client_accuracy_architectures: list[float | None] | None = None
    client_nll_worst_decile: float | None = None
    client_nll_chunks: list[float | None] | None = None
    client_nll_caps: list[float | None] | None = None
    client_nll_architectures: list[float | None] | None = None
    evaluation_bytes: int | None = None
    server_rates: list[float] | None = None
    simulated_seconds: float | None = None
    staleness: float | None = None


class Federation(ModelState):
    """The state of a federated run.

    Attributes:
        round: completed rounds; the rest is :class:`.ModelState`'s.
        privacy: of its clients, if the settings have it.
        defended: what takes the place of the sum, if the settings have a ``defence``.
        residuals: of its clients, with ``error_feedback``; see :meth:`keep_in`.
        fleet: the simulated devices of its clients, if the settings have them.
        pace: whose answers a step waits for.
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
        self.protocol, self.agreement = protocol, {**protocol.agreement, **settings.pace()}
        self.privacy = None if settings.privacy is None else Privacy(protocol)
        self.defended = settings.defend() if settings.defended else None
        self.repeatable = settings.privacy is None or settings.privacy.randomness == "seed"
        devices, pace = settings.devices, Buffered if settings.aggregation == "buffered" else Synchronous
        self.fleet = None if devices is None else Fleet(devices, settings.clients, settings.seed)
        self.pace: Synchronous | Buffered = pace(settings, settings.cohort, self.fleet)
        self._stepped = True
        self.residuals: Residuals | None = None
        if settings.error_feedback:
            folder = tempfile.mkdtemp(prefix="fedpart-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self.residuals = Residuals(Path(folder), protocol.fingerprint)

    def keep_in(self, folder: Path) -> None:
        """Where clients of this machine keep their residuals, so that the run can be resumed.

        If this is not called they are in a folder that ends with the federation.
        """
        if self.residuals is not None:
            self.residuals.folder = folder

    @property
    def round(self) -> int:
        """Completed rounds."""
        return self.completed

    def of_architecture(self, index: int) -> Federation:
        """The state as clients of one architecture have it: its network, with the same w and psi.

        Args:
            index: among ``settings.architectures``.
        """
        found = copy.copy(self)
        found.task, found.partition = self.protocol.tasks[index], self.protocol.partitions[index]
        return found

    def validated(self, dataset: Dataset, samples: int | None = None) -> dict[str, Any]:
        """See :meth:`.ModelState.validated`; with several architectures also the scores of each."""
        found = super().validated(dataset, samples)
        if self.protocol.settings.architectures is None:
            return found
        sizes = (self.of_architecture(index) for index in range(len(self.protocol.partitions)))
        whole = self.partition.needed  # the network that has been scored
        each = [
            found if one.partition.needed == whole else ModelState.validated(one, dataset, samples)
            for one in sizes
        ]
        return found | {f"{name}_architectures": [one[name] for one in each] for name in found}

    def cohort(
        self,
        round: int,
        available: Sequence[int] | None = None,
        *,
        size: int | None = None,
        without: Collection[int] = (),
        turn: int = 0,
    ) -> list[int]:
        """Clients of round ``round`` (1..), see :meth:`.Protocol.cohort`; with privacy the server's secret.

        Privacy's cohorts have no size, and nobody is left out of them but who is not available.
        """
        if self.privacy is not None:
            return self.privacy.cohort(round, available)
        return self.protocol.cohort(round, available, size=size, without=without, turn=turn)

    def start(self, number: int) -> Round:
        """What clients start from in round ``number``: the next one, or the last one, to evaluate it.

        With ``download`` their weights are rounded, the server's own are not.
        """
        w, narrow, defended = self.w, self.protocol.download, self.defended
        of_all = None if defended is None else partial(defended.sum, round=number)
        w = w if narrow is None else w.to(narrow).to(w.dtype)
        return Round(number, w, self.psi, self.residuals, of_all)

    def step(self, total: Update | None, taken: Sequence[int] = ()) -> None:
        """Finish a round with the cohort's weighted sum; None stands for no update at all.

        With fewer updates than ``min_replies`` w and psi stay as they are. With privacy the sum is
        changed in place, and every round steps.

        Args:
            taken: the clients whose updates it sums; where residuals are kept, this round has left theirs.
        """
        if self.privacy is not None:
            total = self.privacy.release(total, self.round + 1)
            self._stepped = True
        else:
            self._stepped = total is not None and total.clients >= self.protocol.settings.min_replies
        if total is not None and self._stepped:
            if self.protocol.settings.non_contributors == "zero":
                total.weights = dict.fromkeys(total.weights, total.total_weight)
                total.psi_weight = float(total.examples)
            if self.defended is not None:
                self.defended.remember(total)
            self.protocol.method.combine(self, total)
        self.completed += 1
        if self.residuals is not None and self._stepped:
            self.residuals.take(self.round, taken)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`.ModelState.state_dict`; with what pace, residuals and defence remember."""
        found = super().state_dict()
        if pace := self.pace.state_dict():
            found["pace"] = pace
        if self.residuals is not None:
            found["residuals"] = self.residuals.versions
        if self.defended is not None:
            found["defended"] = self.defended.state_dict()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`.ModelState.load_state_dict`."""
        super().load_state_dict(state)
        if "pace" in state:
            self.pace.load_state_dict(state["pace"])
        if self.defended is not None:
            self.defended.load_state_dict(state.get("defended", {}))
        if self.residuals is not None:
            self.residuals.versions = dict(state["residuals"])
            self.residuals.saved()

    def save(self, path: str | Path) -> None:
        """See :meth:`.ModelState.save`."""
        super().save(path)
        if self.residuals is not None:
            self.residuals.saved()

    def report(self, seconds: float, cohort: list[int], total: Update | None, upload: int, download: int,
               skipped: list[dict[str, Any]], refused: Sequence[str] = ()) -> RoundReport:  # fmt: skip
        """The report of the round that :meth:`step` has just finished.

        ``refused``: categories of messages that were left out, beside those of the skipped clients.
        """
        unseen = 0 if total is None else total.unseen_examples
        costs: tuple[int | None, float | None] = (None, None)
        if self.privacy is None:
            costs = (0, 0.0) if total is None else (total.visited, total.seconds or seconds)
        return RoundReport(
            round=self.round,
            seconds=seconds,
            train_loss=None if total is None else total.loss / total.examples,
            lml=-total.unseen_loss / unseen if total is not None and unseen else None,
            cohort=cohort,
            upload_bytes=upload,
            download_bytes=download,
            psi=self.told_psi(),
            physical=self.task.physical(self.psi),
            skipped=skipped,
            refused=tally(skipped, refused),
            replies=0 if total is None else total.clients,
            stepped=self._stepped,
            epsilon=None if self.privacy is None else self.privacy.epsilon(self.round),
            examples=costs[0],
            client_seconds=costs[1],
            server_rates=self._rates(),
            simulated_seconds=None if self.fleet is None else self.pace.now,
            staleness=self.pace.staleness,
        )

    def _rates(self) -> list[float] | None:
        settings = self.protocol.settings
        if not any(getattr(one, "hypergradient", 0.0) for one in (settings.server, settings.server_psi)):
            return None
        rates = [self.optimiser.rate(index) for index in range(len(self.partition.cells) - 1)]
        return [*rates, self.optimiser_psi.rate(0)]
