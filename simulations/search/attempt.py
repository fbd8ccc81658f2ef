"""Attempt: a trial that is run or goes on; what its evaluations tell the study, and how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optuna.trial import Trial, TrialState

from fedpart import ClientError, TrainingError
from fedpart.randomness.streams import generator
from simulations.config.load import Config, ExperimentConfig
from simulations.config.search import SearchSection
from simulations.errors import DiskFull, RunError
from simulations.folders.run_directory import holds_run, read_metrics
from simulations.search.study import Study


class Pruned(RunError):
    """The pruner has stopped a run."""


class Attempt:
    """A trial, known to this process alone: the run itself may be elsewhere.

    Attributes:
        trial: Optuna's; config: of its run; folder: of its run; objective: key of a line of metrics.
        misfit: why there is no such run; None: there is.
    """

    def __init__(
        self,
        trial: Trial,
        study: Study,
        config: Config,
        section: SearchSection,
        folder: Path,
        misfit: RunError | None = None,
    ) -> None:
        self.misfit = misfit
        self.trial, self.config, self.folder, self.objective = trial, config, folder, section.objective
        self._study, self._section = study, section
        self._told = set(study.trials[trial.number].intermediate_values)

    def caught_up(self) -> RunError | None:
        """Tell the study what it has not heard of the run's folder; what ends the run before it goes on."""
        lines = read_metrics(self.folder) if holds_run(self.folder) else []
        stops = any(map(self.stops, lines))
        if not stops and self._told and max(self._told) < self.config.length:
            stops = self._study.stops(self.trial.number)  # it may have been killed before the answer was kept
        return Pruned("The pruner has stopped the run.") if stops else self.misfit

    def stops(self, line: dict[str, Any]) -> bool:
        """Tell the study of a line of the run's metrics; whether its pruner stops the run after it."""
        value, round = line.get(self.objective), line[self.config.clock.name]
        if value is None:
            return False
        if round not in self._told:
            self.trial.report(self._noisy(value, round), round)
            self._told.add(round)
        return round >= max(self._told) and round < self.config.length and self.trial.should_prune()

    def ended(self, error: Exception | None) -> None:
        """Tell the study how the run has ended: on its own, by :class:`Pruned`, or by another error.

        Raises:
            Exception: the error, where other trials would fare no better.
        """
        tell = self._study.study.tell
        if error is None:
            if read_metrics(self.folder)[-1].get(self.objective) is not None:
                values = self._study.trials[self.trial.number].intermediate_values
                tell(self.trial, values[max(values)])
                return
            error = RunError(
                f"Its last evaluation has no finite {self.objective}; if no trial's has, choose another "
                f"search.objective."
            )
        if isinstance(error, Pruned):
            tell(self.trial, state=TrialState.PRUNED)
            return
        if isinstance(error, DiskFull) or not isinstance(error, (ClientError, RunError, TrainingError)):
            raise error
        self.trial.set_user_attr("error", str(error))
        tell(self.trial, state=TrialState.FAIL)

    def _noisy(self, value: float, round: int) -> float:
        epsilon, config = self._section.epsilon, self.config
        if epsilon is None or not isinstance(config, ExperimentConfig):
            return value
        clients = min(config.clients, config.evaluation_clients)
        rng = generator(config.seed, "search noise", self.trial.number, round)
        return value + float(rng.laplace(scale=1 / (epsilon * clients)))
