"""Personal: weights that a client has for itself, with which it trains and is scored."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.partition.partition import Partition
from fedpart.training.local import Correction
from fedpart.updates.combining import Combination
from fedpart.updates.errors import Refusal
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import Round, Update, named


class Personal(Stage):
    """Cells of which a client keeps values of its own: those that do not travel, or all of a second network.

    Where a client has kept none yet, it begins with the server's, which are the initial ones of a cell that
    does not travel."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.way: Combination = run.settings.combination
        name, untrained = run.settings.method, "through weights that a client has for itself and never trains"
        fault = f"{name!r} would take psi's gradient {untrained}"
        remedy = "use ditto, or fedavg or augerino in its place"
        require(self.way.tie is not None or len(run.chunks) == 1, f"{fault}; {remedy}.")
        fault = f"{name!r} gives clients settings of their own, and weights as well"
        require(not run.method.tells_clients_apart, f"{fault}; use one of the two.")
        self._slices = [slice(*ends) for ends in pairwise(run.partition.cells)]

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return bool(settings.combination.personal)

    @classmethod
    def check(cls, settings: Any) -> None:
        way = settings.combination
        if not way.personal:
            return
        for key in ("privacy", "buffer", *(("architectures",) if way.tie is None else ())):
            require(
                getattr(settings, key) is None,
                f"With {settings.method!r} a client goes on from weights that its last round has left, which "
                f"{key} does not follow; leave {key} out.",
            )
        fault = f"With {settings.method!r} the server has a part of the network, which cannot be scored"
        require(way.whole or settings.evaluation != "central", f"{fault}; set evaluation: clients.")

    def starts(self, update: Update, round: Round) -> list[Round]:
        """What a client begins from: for what it sends, and last, for what it is scored with."""
        w = round.w.clone()
        for part, kept in update.kept.items():
            if part < 0:
                w[self._slices[-part - 1]] = kept.to(w.device)
        mine = replace(round, w=w, shared=None if self.way.tie is None else round.w)
        return [mine] if self.way.tie is None else [round, mine]

    def correction(self, update: Update, round: Round, partition: Partition, j: int) -> Correction:
        """What a client that begins from ``round`` adds to the gradients of w_j, and what of it moves."""
        sizes, tie, more = partition.cell_sizes(j), self.way.tie, self.way.head_epochs
        if tie is not None and round.shared is not None:
            apart = round.w - round.shared.to(round.w.device)
            return Correction(tie, tie * torch.cat([apart[self._slices[cell - 1]] for cell in sizes]))
        if not more:
            return Correction()
        cells = partition.in_cells(j, round.w[partition.slice(j)])
        head = torch.cat(
            [torch.full_like(part, cell not in sizes, dtype=torch.bool) for cell, part in cells.items()]
        )
        return Correction(turns=(head, more / (more + self.run.settings.local.epochs)))

    def send(self, update: Update, client: int, round: Round) -> None:
        if self.way.tie is None:
            sent = self.run.upload_sizes(client, self.run.plan(client, round.number))
            stays = {cell: update.parts.pop(cell) for cell in [*update.cells] if cell not in sent}
            self.keep(update, self.starts(update, round)[-1], stays)

    def keep(self, update: Update, start: Round, changes: Mapping[int, Tensor]) -> None:
        """Note the client's own values: where it has begun, and the changes of cells.

        Raises:
            Refusal: some are not finite; what it has kept before stays.
        """
        for cell, change in changes.items():
            value = (start.w[self._slices[cell - 1]].to(change.device) + change).cpu()
            if not value.isfinite().all():
                lost = f"the client's own {named(cell)} has values that are not finite"
                raise Refusal("not_finite", f"{lost}; {self.run.method.remedy}")
            update.kept[-cell] = value


def parted(run: Run) -> str:
    """A sentence on weights that the server lacks, as clients keep them; empty: it has all."""
    method, way = run.settings.method, run.settings.combination
    if way.whole:
        return ""
    names = ", ".join(way.stays(run.task))
    return (
        f"With {method} clients keep {names}, which in the server's network are as they began: it is not "
        f"scored, and of no use; fedpart personalise RUN --save FOLDER, in Python personalise(), makes a "
        f"network for each client."
    )
