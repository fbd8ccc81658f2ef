"""Study: Optuna's memory of a search, in the search's folder; what is tried next, and what is stopped."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from simulations.config.search import OBJECTIVES, Choice, Domain, SearchSection

JOURNAL = "study.log"
_ATTEMPTS = 20  # at values that were not tried yet
_NAME = "search"  # Hyperband deals trials to its brackets by this name


class Study:
    """The trials of a search, finished or not.

    With one run at a time a search that is continued has the trials of an undisturbed one: a trial's
    values follow from those before it, the seed and its number alone. One process at a time may open it.

    Args:
        folder: of the search.
        section: what is tried.
        seed: of the search.
        rounds: of a whole run.
        every: rounds between evaluations.
        first: values of the first trial by key; None: they are drawn as those of all others.
    """

    def __init__(
        self,
        folder: Path,
        section: SearchSection,
        seed: int,
        rounds: int,
        every: int,
        first: dict[str, Any] | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        file = (folder / JOURNAL).absolute()
        file.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)  # left by a kill; Optuna would wait for it
        if file.exists():
            os.truncate(file, file.read_bytes().rfind(b"\n") + 1)  # without a line torn by a full disk
        self._section, self._seed, self._first = section, seed, first
        self._domains = section.domains()
        self._distributions = {key: _distribution(self._domains[key]) for key in sorted(self._domains)}
        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(file))),
            sampler=RandomSampler(seed),  # never asked: each trial gets its own
            pruner=_pruner(section, section.min_rounds or every, rounds),
            study_name=_NAME,
            direction="maximize" if OBJECTIVES[section.objective] else "minimize",
            load_if_exists=True,
        )

    @property
    def trials(self) -> list[FrozenTrial]:
        """All, in the order of their numbers."""
        return self.study.get_trials(deepcopy=False)

    def ask(self) -> Trial:
        """The next trial; it is written with all its values at once, so after a kill none lacks some.

        Values that were tried already are drawn anew, as long as there seem to be others: a run with them
        would be the same one.
        """
        tried = [trial.params for trial in self.trials]
        drawn = self._drawn(0)
        for attempt in range(1, _ATTEMPTS):
            if drawn.params not in tried:
                break
            drawn = self._drawn(attempt)
        self.study.add_trial(drawn)
        return Trial(self.study, self.trials[-1]._trial_id)

    def _drawn(self, attempt: int) -> FrozenTrial:
        number = len(self.trials)
        key = [self._seed, number, attempt] if attempt else [self._seed, number]
        seed = int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:4])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            twin = self._before(number, _sampler(self._section.sampler, seed))
            if self._first is not None and not number:
                twin.enqueue_trial(self._params(self._first))
            twin.ask(self._distributions)
        return twin.get_trials(deepcopy=False)[-1]

    def stops(self, number: int) -> bool:
        """Whether the pruner stops a trial after the last value that the study has of it.

        Successive halving notes that a trial has come to a rung, and then answers; asked again it lets the
        trial pass. So who may have missed the answer asks here, where the trial's values are told anew.
        """
        twin, known, stops = self._before(number), self.trials[number], False
        twin.add_trial(
            create_trial(state=TrialState.RUNNING, params=known.params, distributions=known.distributions)
        )
        trial = Trial(twin, twin.trials[-1]._trial_id)
        for step, value in sorted(known.intermediate_values.items()):
            trial.report(value, step)
            stops = trial.should_prune()
        return stops

    def _before(self, number: int, sampler: BaseSampler | None = None) -> optuna.Study:
        """A copy in memory, of the trials before one of them."""
        twin = optuna.create_study(
            sampler=sampler or self.study.sampler,
            pruner=self.study.pruner,
            study_name=_NAME,
            direction=self.study.direction,
        )
        twin.add_trials(self.trials[:number])
        return twin

    def unfinished(self) -> list[Trial]:
        """Trials that were under way when their process ended."""
        running = (TrialState.RUNNING,)
        found = self.study.get_trials(deepcopy=False, states=running)
        return [Trial(self.study, trial._trial_id) for trial in found]

    def values(self, params: dict[str, Any]) -> dict[str, Any]:
        """A trial's values by key, as the configuration takes them."""
        return {
            key: json.loads(value) if isinstance(self._domains[key], Choice) else value
            for key, value in params.items()
        }

    def _params(self, values: dict[str, Any]) -> dict[str, Any]:
        """The other way round: as Optuna has them."""
        return {
            key: json.dumps(value) if isinstance(self._domains[key], Choice) else value
            for key, value in values.items()
        }


def _distribution(domain: Domain) -> BaseDistribution:
    if isinstance(domain, Choice):  # as text, for Optuna's categories are plain
        return CategoricalDistribution([json.dumps(value) for value in domain.values])
    if domain.whole:
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)


def _sampler(name: str, seed: int) -> BaseSampler:
    if name == "random":
        return RandomSampler(seed)
    return TPESampler(seed=seed) if name == "tpe" else GPSampler(seed=seed)


def _pruner(section: SearchSection, least: int, rounds: int) -> BasePruner:
    if section.pruner == "asha":
        return SuccessiveHalvingPruner(least, section.reduction)
    if section.pruner == "hyperband":
        return HyperbandPruner(least, rounds, section.reduction)
    return MedianPruner(n_warmup_steps=least) if section.pruner == "median" else NopPruner()
