"""Race: candidates for a run's learning rates train in turns, until one of them is left."""

import copy
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpart.federated.cohorts import CohortSum
from fedpart.federated.protocol import Protocol
from fedpart.methods.halving import Halving
from fedpart.training.optimisers import SlicedOptimiser
from fedpart.updates.errors import DIVERGED
from fedpart.updates.update import Round


class Candidate(typing.Protocol):
    """What a race needs of a :class:`.Federation`."""

    optimiser: SlicedOptimiser
    optimiser_psi: SlicedOptimiser
    stepped: bool

    @property
    def remembering(self) -> Sequence[Any]:
        """Whose reports are parts of its own."""

    def start(self, number: int | None = None) -> Round:
        """See there, as for the rest."""

    def step(self, answers: CohortSum) -> None:
        """Finish the round."""

    def state_dict(self) -> dict[str, Any]:
        """What decides how it goes on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""


class Race:
    """Candidates by number, the best so far first: of each a federation of its own, and L_ML of its rounds.

    Its rounds have numbers of their own, 1.., and so cohorts and noise: what a candidate becomes is, to the
    bit, what a run with its rates alone would be."""

    def __init__(self, protocol: Protocol, halving: Halving, kind: Callable[[Protocol], Candidate]) -> None:
        self.halving, self._kind, self._alone = halving, kind, copy.copy(protocol)
        self._alone.method = copy.copy(protocol.method)
        self._alone.method.halving = None
        self.left = {number: self._begun(number) for number in range(len(halving.candidates))}
        self.lmls = {number: list[float | None]() for number in self.left}
        self._last, self._beside = (0, self.left[0]), len(self.left)

    def _begun(self, number: int) -> Candidate:
        state, rates = self._kind(self._alone), self.halving.candidates[number]
        state.optimiser.scale(rates["server"])
        state.optimiser_psi.scale(rates["psi"])
        return state

    @property
    def leader(self) -> Candidate:
        """By the last comparison; before the first one, the first candidate."""
        return next(iter(self.left.values()))

    @property
    def rates(self) -> dict[str, float]:
        """What its learning rates are multiplied with."""
        return self.halving.candidates[next(iter(self.left))]

    @property
    def turn(self) -> int:
        """Whose round comes next."""
        return min(self.left, key=lambda number: len(self.lmls[number]))

    def start(self, evaluated: int | None) -> Round:
        """What clients start from in that round, or the best so far, which round ``evaluated`` looks at."""
        rate, state = self.halving.candidates[self.turn]["local"], self.left[self.turn]
        round = state.start() if evaluated is None else self.leader.start(evaluated)
        return replace(round, local_rate=rate, trial=len(self.left) > 1)

    def step(self, answers: CohortSum) -> None:
        """Finish that round; when all have had as many as halving asks for, the worse ones go."""
        number, self._beside = self.turn, len(self.left)
        self._last = number, self.left[number]
        self.left[number].step(answers)
        lost = any(skip["category"] in DIVERGED for skip in answers.skipped)
        lml = None if answers.total is None else answers.total.lml
        self.lmls[number].append(-math.inf if lost else lml)
        done, fewest = (len(self.lmls[each]) for each in (number, self.turn))
        if done == fewest and done % self.halving.rounds == 0 and self._beside > 1:
            kept = self.halving.survivors({each: self.lmls[each] for each in self.left})
            self.left = {each: self.left[each] for each in kept}

    def report(self, round: int) -> dict[str, Any]:
        """Of the candidate that had the last round its multiples, and how many took part in it."""
        number, state = self._last
        told = {
            "factors": self.halving.candidates[number],
            "candidates": self._beside,
            "stepped": state.stepped,
        }
        return {key: value for part in state.remembering for key, value in part.report(round).items()} | told

    def told(self) -> str:
        """Whose rates the run ends with, in words."""
        rates, tried = [f"{name} x {by:g}" for name, by in self.rates.items()], len(self.halving.candidates)
        if len(self.lmls[self.turn]) < (due := self.halving.rounds):
            alike = f"the first of {tried} candidates, which are not compared before {due} rounds of each"
            return f"{', '.join(rates)}: {alike}"
        return f"{', '.join(rates)}: the best by L_ML of {tried} candidates, {len(self.left)} left"

    def state_dict(self) -> dict[str, Any]:
        """The candidates that are left, with what they have come to."""
        return {
            "race": [(number, self.lmls[number], each.state_dict()) for number, each in self.left.items()]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.lmls = {number: [*lmls] for number, lmls, _ in state["race"]}
        self.left = {number: self._begun(number) for number in self.lmls}
        for number, _, of_candidate in state["race"]:
            self.left[number].load_state_dict(of_candidate)
