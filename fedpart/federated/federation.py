"""Federation: the state of a run on the server, and one round of it."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedpart.data.dataset import Dataset
from fedpart.federated.privacy import Privacy
from fedpart.federated.protocol import Protocol
from fedpart.federated.report import RoundReport
from fedpart.federated.residuals import Residuals
from fedpart.federated.round import Round
from fedpart.federated.usual import UsualNorms
from fedpart.pace.buffered import Buffered
from fedpart.pace.devices import Fleet
from fedpart.pace.turns import Synchronous
from fedpart.task.psi_bounds import psi_bounds
from fedpart.training.state import ModelState
from fedpart.updates.clipping import MEASURED, Bounds, Norms
from fedpart.updates.errors import tally
from fedpart.updates.update import Update


class Federation(ModelState):
    """The state of a federated run.

    Attributes:
        round: completed rounds; the rest is :class:`.ModelState`'s.
        privacy: of its clients, if the settings have it.
        defended: what takes the place of the sum, if the settings have a ``defence``.
        residuals: of its clients, with ``error_feedback``; see :meth:`keep_in`.
        fleet: the simulated devices of its clients, if the settings have them.
        pace: whose answers a step waits for.
        usual: what norms its clients' uploads usually have.
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
        self.protocol, self.usual = protocol, UsualNorms(protocol)
        self.agreement = {**protocol.agreement, **settings.of_server()}
        self.privacy = None if settings.privacy is None else Privacy(protocol)
        self.defended = settings.defend() if settings.defended else None
        devices, pace = settings.devices, Buffered if settings.aggregation == "buffered" else Synchronous
        self.fleet = None if devices is None else Fleet(devices, settings.clients, settings.seed)
        self.pace: Synchronous | Buffered = pace(settings, settings.cohort, self.fleet)
        self._stepped = True
        self._limits = [bound.to(settings.device) for bound in psi_bounds(protocol.task)]
        self.residuals: Residuals | None = None
        if settings.error_feedback:
            folder = tempfile.mkdtemp(prefix="fedpart-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self.residuals = Residuals(Path(folder), protocol.fingerprint)

    def keep_in(self, folder: Path, releases: Path) -> None:
        """Where clients of this machine keep their residuals, and private runs count their releases.

        It is called before a checkpoint is loaded, so that the run can be resumed. If it is not called,
        residuals are in a folder that ends with the federation, and releases are counted from the checkpoint.

        Raises:
            ValueError: see :meth:`.Privacy.write_to`.
        """
        if self.residuals is not None:
            self.residuals.folder = folder
        if self.privacy is not None:
            self.privacy.write_to(releases, json.dumps(self.agreement))

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

    def bounds(self) -> Bounds | None:
        """To which the server clips the next round's updates, where that follows the clients; None: not."""
        return self.usual.bounds() if self.privacy is None else self.privacy.bounds()

    def start(self, number: int) -> Round:
        """What clients start from in round ``number``: the next one, or the last one, to evaluate it.

        With ``download`` their weights are rounded, the server's own are not.
        """
        w, narrow, of_all = self.w, self.protocol.download, None
        bounds = clients = self.bounds()
        if self.defended is not None:
            of_all = partial(self.defended.sum, round=number, bounds=bounds, before=self.usual.few())
            clients = None if bounds is None else [max(bound, MEASURED) for bound in bounds]
        w = w if narrow is None else w.to(narrow).to(w.dtype)
        return Round(number, w, self.psi, self.residuals, clients, of_all)

    def step(
        self, total: Update | None, taken: Sequence[int] = (), norms: Mapping[int, Norms] | None = None
    ) -> None:
        """Finish a round with the cohort's weighted sum; None stands for no update at all.

        With fewer updates than ``min_replies`` w and psi stay as they are. With privacy the sum is
        changed in place, and every round steps.

        Args:
            taken: the clients whose updates it sums; where residuals are kept, this round has left theirs.
            norms: of their updates, by client; None: they are not known.
        """
        self.usual.take(norms or {}, total)
        for alarm in self.usual.alarms:
            said = f"chunk {alarm['chunk']} are {alarm['times']:.3g} times as long as is usual; look at them"
            warnings.warn(
                f"Round {self.round + 1}: the psi gradients of {said}.", RuntimeWarning, stacklevel=2
            )
        if self.privacy is not None:
            total = self.privacy.release(total, self.round + 1, norms)
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
        self._hold()
        self.completed += 1
        if self.residuals is not None and self._stepped:
            self.residuals.take(self.round, taken)

    def held(self) -> list[str]:
        """Names of hyperparameters that are at the bound of what they can mean, at least in part."""
        low, high = self._limits
        start = self.task.psi_space.initial().to(self.psi.device)
        there = ((self.psi <= low) | (self.psi >= high)) & (self.psi != start)
        return [name for name, places in self.task.psi_tensors(there).items() if places.any()]

    def _hold(self) -> None:
        """Bring hyperparameters back to what their kinds can mean, and name them."""
        within = self.psi.clamp(*self._limits)
        if not torch.equal(within, self.psi):
            self.psi.copy_(within)
            warnings.warn(
                f"{', '.join(self.held())}: held at the bound of what it can mean, beyond which the clients' "
                f"gradients would take it; look at who has sent them.",
                RuntimeWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`.ModelState.state_dict`; with what pace, norms, residuals and defence remember."""
        found = super().state_dict()
        if norms := self.usual.state_dict():
            found["norms"] = norms
        if self.privacy is not None:
            found |= self.privacy.state_dict()
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
        self.usual.load_state_dict(state.get("norms", {}))
        if self.privacy is not None:
            self.privacy.load_state_dict(state)
        if "pace" in state:
            self.pace.load_state_dict(state["pace"])
        if self.defended is not None:
            self.defended.load_state_dict(state.get("defended", {}))
        if self.residuals is not None:
            self.residuals.versions = dict(state["residuals"])
            self.residuals.saved()

    def load(self, path: str | Path) -> None:
        """See :meth:`.ModelState.load`, and :meth:`.Privacy.catch_up`."""
        super().load(path)
        if self.privacy is not None:
            self.privacy.catch_up()

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
            epsilon=None if self.privacy is None else self.privacy.epsilon(),
            examples=costs[0],
            client_seconds=costs[1],
            server_rates=self._rates(),
            simulated_seconds=None if self.fleet is None else self.pace.now,
            staleness=self.pace.staleness,
            clipped=self.usual.clipped,
            psi_alarms=self.usual.alarms or None,
        )

    def _rates(self) -> list[float] | None:
        settings = self.protocol.settings
        if not any(getattr(one, "hypergradient", 0.0) for one in (settings.server, settings.server_psi)):
            return None
        rates = [self.optimiser.rate(index) for index in range(len(self.partition.cells) - 1)]
        return [*rates, self.optimiser_psi.rate(0)]
