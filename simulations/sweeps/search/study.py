"""Study: Optuna's memory of a search, in the search's folder: what is tried next, and how trials get on."""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from fedpart import ClientError, TrainingError
from simulations.config.load import Config
from simulations.config.search import OBJECTIVES, Domain, SearchSection
from simulations.errors import ConfigError, DiskFull, RunError
from simulations.folders.cell import Cell
from simulations.folders.data_files import KnownData
from simulations.folders.run_directory import holds_run, read_metrics
from simulations.sweeps.parallel import Pruned

JOURNAL = "study.log"
SAMPLERS = {"random": RandomSampler, "tpe": TPESampler, "gp": GPSampler}
REDUCTION = 3  # one of so many runs goes on, with asha and hyperband
_ATTEMPTS = 20  # at values that were not tried yet
_NAME = "search"  # Hyperband deals trials to its brackets by this name


class Study:
    """The trials of a search, finished or not.

    With one run at a time a search that is continued has the trials of an undisturbed one: a trial's
    values follow from those before it, the seed and its number alone. One process at a time may open it.
    """

    def __init__(self, folder: Path, config: Config, first: dict[str, Any] | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        file = (folder / JOURNAL).absolute()
        file.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)  # left by a kill; Optuna would wait for it
        if file.exists():
            os.truncate(file, file.read_bytes().rfind(b"\n") + 1)  # without a line torn by a full disk
        assert config.search is not None
        self.section, self._seed, self._first = config.search, config.seed, first
        self._domains = self.section.domains()
        self._distributions = {key: _distribution(self._domains[key]) for key in sorted(self._domains)}
        try:
            self.study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(file))),
                sampler=RandomSampler(self._seed),  # never asked: each trial gets its own
                pruner=_pruner(self.section, self.section.min_rounds or config.evaluate_every, config.length),
                study_name=_NAME,
                direction="maximize" if OBJECTIVES[self.section.objective] else "minimize",
                load_if_exists=True,
            )
            if any(trial.params.keys() != self._distributions.keys() for trial in self.trials):
                raise ValueError("a trial has other keys")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            fault = f"The search's {file} cannot be read ({type(error).__name__})"
            raise ConfigError(f"{fault}; put it back as it was, or search anew with --out.") from error

    @property
    def trials(self) -> list[FrozenTrial]:
        """All, in the order of their numbers."""
        return self.study.get_trials(deepcopy=False)

    def ask(self) -> Trial:
        """The next trial, written with all values at once; values that were tried are drawn anew."""
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
            twin = self._before(number, SAMPLERS[self.section.sampler](seed=seed))
            if self._first is not None and not number:
                chosen = {k: json.dumps(v) if self._chosen(k) else v for k, v in self._first.items()}
                twin.enqueue_trial(chosen)
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
        known = self.study.get_trials(deepcopy=False, states=running)
        return [Trial(self.study, trial._trial_id) for trial in known]

    def values(self, params: dict[str, Any]) -> dict[str, Any]:
        """A trial's values by key, as the configuration takes them; of a choice Optuna has the JSON."""
        return {key: json.loads(v) if self._chosen(key) else v for key, v in params.items()}

    def _chosen(self, key: str) -> bool:
        return self._domains[key].kind == "choice"


@dataclass(frozen=True)
class Attempt(Cell):
    """A trial whose run is to be made, or goes on, here or elsewhere."""

    study: Study
    trial: Trial

    @property
    def known(self) -> FrozenTrial:
        return self.study.trials[self.trial.number]

    def check(self, data: KnownData) -> None:
        """Hold what the study has of the trial against the run in its folder."""
        self.state(data)
        told, clock = self.known.intermediate_values, self.config.clock.name
        true = {line[clock]: line.get(self.study.section.objective) for line in read_metrics(self.folder)}
        value = self.known.value
        if any(true.get(round) not in (None, value) for round, value in told.items()) or (
            self.known.state == TrialState.COMPLETE and value != told.get(max(told, default=0))
        ):
            fault = f"{self.folder.parents[1] / JOURNAL} does not tell what is in {self.folder}"
            raise ConfigError(f"{fault}; put both back as they were, or search anew with --out.")

    def caught_up(self) -> bool:
        """Tell the study what it has not heard of the run's folder; whether this ends the run."""
        lines = read_metrics(self.folder) if holds_run(self.folder) else []
        if any(map(self.stops, lines)):
            return True
        told = max(self.known.intermediate_values, default=self.config.length)
        return told < self.config.length and self.study.stops(self.trial.number)  # nobody heard the answer

    def stops(self, line: Mapping[str, Any]) -> bool:
        """Tell the study of a line of the run's metrics; whether its pruner stops the run after it."""
        value, round = line.get(self.study.section.objective), line[self.config.clock.name]
        if value is None:
            return False
        if round not in (told := self.known.intermediate_values):
            self.trial.report(value, round)
        return max(told, default=round) <= round < self.config.length and self.trial.should_prune()

    def ended(self, error: Exception | None) -> None:
        """Tell the study how the run has ended: on its own, by :class:`.Pruned`, or by another error."""
        tell, values = self.study.study.tell, self.known.intermediate_values
        objective = self.study.section.objective
        if error is None and read_metrics(self.folder)[-1].get(objective) is not None:
            tell(self.trial, values[max(values)])
        elif isinstance(error, Pruned):
            tell(self.trial, state=TrialState.PRUNED)
        else:
            error = error or RunError(
                f"Its last evaluation has no finite {objective}; if no trial's has, choose another "
                f"search.objective."
            )
            if isinstance(error, DiskFull) or not isinstance(error, (ClientError, RunError, TrainingError)):
                raise error
            self.trial.set_user_attr("error", str(error))
            tell(self.trial, state=TrialState.FAIL)


def _distribution(domain: Domain) -> BaseDistribution:
    if domain.kind == "choice":  # as text, for Optuna's categories are plain
        return CategoricalDistribution([json.dumps(value) for value in domain.ends])
    kind = IntDistribution if domain.whole else FloatDistribution
    return kind(*domain.ends, log=domain.kind == "log")


def _pruner(section: SearchSection, least: int, rounds: int) -> BasePruner:
    if section.pruner == "asha":
        return SuccessiveHalvingPruner(least, REDUCTION)
    if section.pruner == "hyperband":
        return HyperbandPruner(least, rounds, REDUCTION)
    return MedianPruner(n_warmup_steps=least) if section.pruner == "median" else NopPruner()
