"""Combining: what a way to combine clients remembers on the server, and what a client's update is for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.partition.partition import Partition
from fedpart.training.local import Correction
from fedpart.trees import as_made
from fedpart.updates.combining import Combination
from fedpart.updates.errors import StepError
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import Norms, Round, Update


class Combining(Stage):
    """A :class:`.Combination` that looks at the clients' changes, cell by cell.

    What is averaged beside the change of cell j is part -j of an update, on the server alone. Of each cell
    that clients have variates for, the server keeps the sum of all, each as often as its client's weight:
    what is added to a client's is a function of what it sends. The mean is over the clients that train the
    cell, so each weighs as the mean client so far where the others' weights are not known yet."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.way: Combination = run.settings.combination
        require(
            not run.method.tells_clients_apart,
            f"The method {run.settings.method!r} may give clients a loss or settings of their own, and the "
            f"server cannot know how far they step; use fedprox, or another method.",
        )
        self._slices = [slice(*ends) for ends in pairwise(run.partition.cells)]
        self._sums = torch.zeros(run.partition.cells[-1], dtype=run.task.dtype, device=run.settings.device)
        self._seen = torch.zeros(2, len(self._slices), dtype=torch.float64)  # answers, and their weights
        self._clients = torch.zeros(len(self._slices), dtype=torch.float64)  # that train each cell
        for client, count in run.kinds.values() if self.way.keeps else ():
            self._clients[self._trained(client, 1)] += count

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return bool(settings.combination.sees)

    @classmethod
    def check(cls, settings: Any) -> None:
        way = settings.combination  # refuses
        for key in ("defence", "privacy", "buffer") if way.sees else ():
            require(
                getattr(settings, key) is None,
                f"{settings.method!r} is about the mean of clients that start from the same weights, which "
                f"{key} does not leave as it is; leave {key} out, or use fedprox.",
            )
        adaptive = settings.clip is not None and settings.clip.adaptive
        require(
            not (way.variates and adaptive),
            f"With {settings.method!r} clients keep what they have sent, and to norms that follow them the "
            f"server alone clips, so that its mean is no longer theirs; give numbers to which clients "
            f"clip too, clip: {{weights: 1.0}}, or leave clip out.",
        )

    def start(self, round: Round) -> Round:
        return replace(round, variates=self.means()) if self.way.sends else round

    def means(self) -> Tensor:
        """The mean of the clients' variates, ``[size]`` in partition order."""
        answers, weights = self._seen
        whole = torch.where(answers > 0, self._clients * weights / answers, 1.0)
        sizes = torch.tensor([places.stop - places.start for places in self._slices])
        return self._sums / whole.to(self._sums).repeat_interleave(sizes.to(self._sums.device))

    def correction(self, update: Update, round: Round, partition: Partition, j: int) -> Correction:
        """What a client adds to the gradients of w_j."""
        added = []
        for cell, size in partition.cell_sizes(j).items():
            kept = update.kept.get(-cell, torch.zeros(size)).to(round.w, copy=True)
            if (shift := self.way.shift(kept, self._mean(round, cell, round.w))) is not None:
                added.append(as_made(shift, kept, f"The shift() of {self.run.settings.method!r}"))
        return Correction(self.way.pull, torch.cat(added) if added else None)

    def _mean(self, round: Round, cell: int, like: Tensor) -> Tensor | None:
        return None if round.variates is None else round.variates[self._slices[cell - 1]].to(like.device)

    def _beside(self, update: Update, round: Round) -> dict[int, Tensor]:
        length = self.run.settings.local.at(round.number, round.local_rate).length(update.examples)
        by, way = f"The beside() of {self.run.settings.method!r}", self.way
        return {
            -j: as_made(way.beside(change, self._mean(round, j, change), length), change, by, one=True)
            for j, change in update.cells.items()
        }

    def sent(self, update: Update, client: int, round: Round) -> None:
        if self.way.keeps and round.kept is not None:
            for part, moved in self._beside(update, round).items():
                update.kept[part] = moved.cpu() + update.kept.get(part, 0.0)

    def receive(self, update: Update, round: Round) -> Norms:
        update.parts |= self._beside(update, round)
        return {}

    def accept(self, total: Update, round: int, clients: Sequence[int]) -> None:
        beside = {-part: total.parts.pop(part) for part in [*total.parts] if part < 0}
        for cell, moved in beside.items() if self.way.keeps else ():
            self._sums[self._slices[cell - 1]] += moved
            self._seen[1, cell - 1] += total.weights[-cell]
        for client in clients if self.way.keeps else ():
            self._seen[0, self._trained(client, round)] += 1
        if type(self.way).step is Combination.step:
            return
        means = self.means() if self.way.keeps else None
        for cell in beside.keys() & total.parts.keys():  # there are some of which the method counts nothing
            weight, change = total.weights[cell], total.parts[cell]
            mean = None if means is None else means[self._slices[cell - 1]]
            step: Any = self.way.step
            made = step(change.div_(weight), beside[cell].div_(weight), mean)
            by = f"The step() of {self.run.settings.method!r} returns a {type(made).__name__}"
            require(made is None, f"{by}; have it alter the change in place.", StepError)
            change.mul_(weight)

    def _trained(self, client: int, round: int) -> list[int]:
        """The indices of the cells that it trains."""
        sizes = self.run.upload_sizes(client, self.run.plan(client, round))
        return [part - 1 for part in sizes if part > 0]

    def state_dict(self) -> dict[str, Any]:
        return {"variates": (self._sums, self._seen)} if self.way.keeps else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for kept, value in zip((self._sums, self._seen), state.get("variates", ()), strict=False):
            kept.copy_(value)
