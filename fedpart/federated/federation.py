"""Federation: the state of a run on the server, and one round of it."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.federated.best import Best
from fedpart.federated.cohorts import CohortSum
from fedpart.federated.pace.turns import Pace, pace_of
from fedpart.federated.protocol import Protocol
from fedpart.federated.race import Race
from fedpart.training.state import ModelState
from fedpart.updates.errors import StepError
from fedpart.updates.stages import Kind, doing, stage_of, stages_of
from fedpart.updates.stages.base import Stage
from fedpart.updates.stages.personal import parted
from fedpart.updates.update import Round


class Federation(ModelState):
    """The state of a federated run. A round: ``start``, ``cohort``, the sum of its answers, ``step``.

    Attributes:
        round: completed rounds; the rest is :class:`.ModelState`'s.
        stages: safeguards and savings, with what they remember.
        pace: whose answers a step waits for in simulated time; None: nobody takes any.
        stepped: whether the last round had enough answers for a step.
        best: what ``keep_best`` keeps; None: nothing.
        race: candidates for the learning rates; None: there are none. The rest is then of the best so far.
    """

    def __init__(self, protocol: Protocol) -> None:
        settings = protocol.settings
        of_run = protocol.task, protocol.partition, settings.stepped_by, settings.server_psi
        super().__init__(*of_run, seed=settings.seed, device=settings.device)
        self.protocol, self.stages, self.pace = protocol, stages_of(protocol), pace_of(settings)
        self.parted, self.learned = parted(protocol), [*protocol.method.trained_psi(protocol.task)]
        self._start = doing(self.stages, "start")
        self._cohort: Callable[..., list[int]] = [*doing(self.stages, "cohort"), protocol.cohort][0]
        self._total, self._accept = doing(self.stages, "total"), doing(self.stages, "accept")
        self.best = Best(self) if settings.keep_best else None
        self._accept += [] if self.best is None else [self.best.accept]
        self.agreement, self.stepped = {**protocol.agreement, **settings.of_server()}, True
        halving = protocol.method.halving
        self.race = None if halving is None else Race(protocol, halving, type(self))
        alone: list[Stage | Pace | Best | None] = [*self.stages, self.pace, self.best]
        self.remembering = [part for part in ([self.race] if self.race else alone) if part is not None]
        self._follow()

    def keep_in(self, residuals: Path, releases: Path) -> None:
        """Where clients of this machine keep their residuals, and private runs count their releases.

        Called before a checkpoint is loaded. If it is not called, residuals are in a folder that ends with
        the federation, and releases are counted from the checkpoint."""
        for stage in self.stages:
            stage.keep_in(residuals, releases, json.dumps(self.agreement))

    def stage(self, kind: type[Kind]) -> Kind | None:
        """The stage of this kind; None: the settings do not ask for it."""
        return stage_of(self.stages, kind)

    @property
    def round(self) -> int:
        """Completed rounds."""
        return self.completed

    def of_architecture(self, index: int) -> Federation:
        """The state as clients of one architecture have it: its network, with the same w and psi."""
        state = copy.copy(self)
        state.task, state.partition = self.protocol.tasks[index], self.protocol.partitions[index]
        return state

    def validated(self, dataset: Dataset, samples: int | None = None) -> dict[str, Any]:
        """See :meth:`.ModelState.validated`; with several architectures also the scores of each."""
        scores = super().validated(dataset, samples)
        if self.protocol.settings.architectures is None:
            return scores
        sizes = (self.of_architecture(index) for index in range(len(self.protocol.partitions)))
        whole = self.partition.needed  # the network that has been scored
        each = [
            scores if state.partition.needed == whole else ModelState.validated(state, dataset, samples)
            for state in sizes
        ]
        return scores | {f"{name}_architectures": [of_state[name] for of_state in each] for name in scores}

    def start(self, number: int | None = None) -> Round:
        """What clients start from in round ``number``: the next one, or the last one, to evaluate it."""
        if self.race is not None:
            return self.race.start(number if number == self.completed else None)
        round = Round(self.completed + 1 if number is None else number, self.w, self.psi)
        for start in self._start:
            round = start(round)
        return round

    def cohort(self, round: int, available: Sequence[int] | None = None, **more: Any) -> list[int]:
        """Clients of round ``round`` (1..), see :meth:`.Protocol.cohort`, or whom a stage draws.

        Privacy's cohorts have no size, and nobody is left out of them but who is not available."""
        return self._cohort(round, available, **more)

    def step(self, answers: CohortSum) -> None:
        """Finish a round with the cohort's sum; stages change it in place.

        With fewer updates than ``min_replies`` w and psi stay as they are; with privacy every round steps.
        """
        number, total, protocol = self.completed + 1, answers.total, self.protocol
        if self.race is not None:
            self.race.step(answers)
            self.completed = number
            return self._follow()
        for change in self._total:
            total = change(total, number, answers.norms)
        replies = 0 if total is None else total.clients
        self.stepped = protocol.private or replies >= protocol.settings.min_replies
        if total is not None and self.stepped:
            for accept in self._accept:
                accept(total, number, answers.taken)
            protocol.method.combine(self, total)
        self._hold()
        self.completed = number

    def _follow(self) -> None:
        """Show the state of the best candidate, if there are any."""
        leader = self if self.race is None else self.race.leader
        for name in ("w", "psi", "optimiser", "optimiser_psi", "stages"):
            setattr(self, name, getattr(leader, name))

    def finish(self) -> None:
        """After the last round: take what ``keep_best`` has kept, for which optimisers have no moments."""
        for values, kept in zip((self.w, self.psi), self.best.kept if self.best else (), strict=False):
            values.copy_(kept)

    def _hold(self) -> None:
        """Bring hyperparameters back to what their kinds can mean, and name them.

        Raises:
            StepError: w or psi are not finite, though the clients' updates were.
        """
        within, whole = self.psi.clamp(*self.limits), self.w.sum() + self.psi.sum()
        if ((beyond := within != self.psi).any() | ~whole.isfinite()).item():  # all that is read here
            _look(self, beyond)
            self.psi.copy_(within)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`.ModelState.state_dict`; with what stages and the pace remember."""
        state = super().state_dict()
        for part in self.remembering:
            state |= part.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`.ModelState.load_state_dict`."""
        super().load_state_dict(dict(state))
        for part in self.remembering:
            part.load_state_dict(state)
        self._follow()

    def load(self, path: str | Path) -> None:
        """See :meth:`.ModelState.load`, and :meth:`.Stage.loaded`."""
        super().load(path)
        for stage in self.stages:
            stage.loaded()

    def save(self, path: str | Path) -> None:
        """See :meth:`.ModelState.save`."""
        super().save(path)
        for stage in self.stages:
            stage.saved()


def _look(state: Federation, beyond: Tensor) -> None:
    """Refuse a step that made no numbers, and warn of hyperparameters ``beyond`` what they can mean."""
    what = f"Round {state.completed + 1} has made weights or psi NaN or infinite, as no update was"
    defence = f", or mend the defence {of!r}" if (of := state.protocol.settings.defence) else ""
    lower = f"lower the server's learning rates, or mend the method's combine(){defence}"
    finite = all(torch.isfinite(values).all() for values in (state.w, state.psi))
    require(finite, f"{what}; {lower}.", StepError)
    if names := state.names_at(beyond):
        held = f"{', '.join(names)}: held at the bound of what it can mean, beyond which the clients'"
        warnings.warn(f"{held} gradients would take it; look at who has sent them.", RuntimeWarning, 4)
