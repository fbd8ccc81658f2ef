"""Defended sums: a cohort's updates as one that a few of its clients cannot move far, whatever they send."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.randomness.streams import generator
from fedpart.trees import as_made
from fedpart.updates.defences.base import Defence, weighted_sum
from fedpart.updates.errors import StepError
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import FREE, MEASURED, SUMMED, Bound, Bounds, Round, Update, length, usual


class RobustSum(Stage):
    """What a defence makes of a cohort's updates takes the place of their sum."""

    equal = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.defended: Defended = run.settings.defend()

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return settings.defence is not None

    @classmethod
    def check(cls, settings: Any) -> None:
        fault = f"defence_options are {dict(settings.defence_options)}, but there is no defence to take them"
        remedy = "set defence as well"
        require(settings.defence is not None or not settings.defence_options, f"{fault}; {remedy}.")
        if settings.defence is not None:
            uniform = settings.weighting == "uniform"
            require(uniform, "A defence counts clients, not examples; set weighting: uniform.")
            of_each = settings.defend().defence.by_coordinate  # refuses
            require(
                not (of_each and settings.upload is not None and settings.codec().sparse),
                f"A coordinate that most clients leave out of their upload has a median of 0, so nothing "
                f"would be learnt with upload: {settings.upload}; leave it or defence out, or "
                f"use defence: geometric.",
            )

    def start(self, round: Round) -> Round:
        """With what sums; it sees updates as they were sent, and bounds what it makes of them."""
        of_all = partial(self.defended.sum, round=round.number, bounds=round.bounds, before=round.norms)
        seen = (
            None if round.bounds is None else [FREE if bound is FREE else MEASURED for bound in round.bounds]
        )
        return replace(round, of_all=of_all, bounds=seen)

    def accept(self, total: Update, round: int, clients: Sequence[int]) -> None:
        self.defended.remember(total)

    def state_dict(self) -> dict[str, Any]:
        return {"defended": state} if (state := self.defended.state_dict()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.defended.load_state_dict(state.get("defended", {}))


class Defended:
    """What takes the place of a cohort's sum, with what the defence remembers: of each cell, and of psi (0).

    ``bucket``: clients whose mean is one vector for the defence (Karimireddy et al. 2022), drawn anew each
    round; where the defence would then bear nobody, they stay by themselves."""

    def __init__(self, defence: Defence, bucket: int = 1, seed: int = 0) -> None:
        if type(bucket) is not int or bucket < 1:
            raise ValueError(f"bucket, of defence_options, is a whole number of at least 1, got {bucket!r}.")
        self.defence, self._bucket, self._seed = defence, bucket, seed
        self.memory: dict[int, Tensor] = {}

    def bears(self, clients: int) -> int:
        """How many of the contributors to a cell may send anything; see :meth:`.Defence.bears`."""
        return self.defence.bears(self._buckets(clients))

    def _buckets(self, clients: int) -> int:
        """In how many buckets so many clients are."""
        buckets = -(-clients // self._bucket)
        return clients if self.defence.bears(buckets) == 0 else buckets

    def sum(
        self, updates: Sequence[Update], round: int, bounds: Bounds | None = None,
        before: Mapping[int, Sequence[float]] | None = None,
    ) -> Update | None:  # fmt: skip
        """An update of weight 1 that stands for those of a cohort, of equal weight; all are in memory at
        once.

        ``bounds``: of what it makes of each part, for which it sees updates as they were sent; of its terms
        where it bears nobody, in place. ``UNIT``: the lower median of their norms and of those ``before``,
        and nothing of a single one."""
        if not updates:
            return None
        total = Update()
        for name in SUMMED:
            setattr(total, name, sum(getattr(update, name) for update in updates))
        if self._bucket > 1:
            order = generator(self._seed, "buckets", round).permutation(len(updates)).tolist()
            updates = [updates[place] for place in order]
        parts = [update.parts for update in updates]
        for part in sorted({part for tensors in parts for part in tensors}):
            values = [tensors[part] for tensors in parts if part in tensors]
            bound = FREE if bounds is None else bounds[part]
            total.parts[part] = self._combined(part, values, bound, (before or {}).get(part, ()))
            total.weights[part] = 1.0
        return total

    def _combined(self, part: int, values: list[Tensor], bound: Bound, before: Sequence[float]) -> Tensor:
        memory, n, buckets = self.memory.get(part), len(values), self._buckets(len(values))
        if bound.unit:
            bound = Bound(usual([*before, *(norm for value in values if (norm := length(value)))]))
        if bound.norm == 0:
            return torch.zeros_like(values[0])
        if bound.norm is not None and self.bears(n) == 0:
            for value in values:
                bound.shorten(value)
        if buckets < n:
            ends = [n * i // buckets for i in range(buckets + 1)]
            groups = [values[start:end] for start, end in pairwise(ends)]
            values = [weighted_sum(group, [1.0] * len(group)).div_(len(group)) for group in groups]
        combined = self.defence.combine(values, None if memory is None else memory.to(values[0].device))
        by = f"The combine() of the defence {type(self.defence).__name__}"
        combined = as_made(combined, values[0], by, StepError)
        if bound.norm is not None:
            bound.shorten(combined)
        return combined

    def remember(self, total: Update) -> None:
        """Keep what the defence remembers of a round that steps with ``total``, which is not used up yet."""
        for cell, value in total.parts.items():
            memory = self.memory.get(cell)
            memory = self.defence.remembered(value, None if memory is None else memory.to(value.device))
            self.memory.pop(cell, None)
            if memory is not None:  # the total is used up in place
                by = f"The remembered() of the defence {type(self.defence).__name__}"
                self.memory[cell] = as_made(memory, value, by, StepError)

    def state_dict(self) -> dict[str, Any]:
        """What decides how it goes on; empty if the defence remembers nothing."""
        return {"memory": dict(self.memory)} if self.memory else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.memory = dict(state.get("memory", {}))
