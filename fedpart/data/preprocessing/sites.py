"""A table whose preprocessing is made of what clients tell, each of its own rows: here, or far apart."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.data.cells import numbered, texts_of
from fedpart.data.columns import Columns, Roles, floats_of, targets_of
from fedpart.data.dataset import Dataset, Splits
from fedpart.data.preprocessing.fitting import kinds_of, numbers_in, prepared
from fedpart.data.preprocessing.rows import Rows, levels_of
from fedpart.data.preprocessing.sums import Sums, check_sums, joined, moments
from fedpart.data.splitting.hold_out import with_held_out


def splits_of_clients(
    tables: Mapping[str, tuple[Columns, str]], roles: Roles, real: bool, divided: Any, how: Mapping[str, Any]
) -> Splits:
    """A table's splits, of which each client holds out rows by itself, ``divided`` as :func:`.with_held_out`
    says. ``how``: what :func:`.sums.joined` takes, ``categorical``, and ``statistics``: ``federated``, of
    these clients, the state of the preprocessing, or a callable that makes it of their sums, a list."""
    names, target, (table, file) = roles.inputs(*tables["train"]), roles.target, tables["train"]
    owned, values = (
        {name: columns[str(role)] for columns, name in tables.values()} for role in (roles.client, target)
    )
    owners, clients = numbered(owned, str(roles.client))
    told, halves = dict[int, Sums](), {half: list[Tensor]() for half in ("train", "validation", "test")}
    columns = {name: table[name] for name in names}
    said: Any = table[target]
    said = floats_of(said).astype(np.float32).astype(np.float64) if real else texts_of(said, target, file)

    def refuse(client: int, why: str) -> None:
        raise ValueError(f"The rows of {clients[client]!r} in {file} cannot be summed with others: {why}.")

    for number, client in enumerate(clients):
        mine = {part: torch.nonzero(owners[name] == number)[:, 0] for part, (_, name) in tables.items()}
        sets = {part: Dataset(rows, torch.zeros(len(rows))) for part, rows in mine.items()}
        for half, dataset in with_held_out(sets, **divided).items() if len(mine["train"]) else sets.items():
            halves[half].append(dataset.inputs)
        if not len(mine["train"]) or isinstance(how["statistics"], Mapping):
            continue
        rows = halves["train"][-1].numpy()
        kinds = kinds_of(columns, rows, how["categorical"], how["missing"], file)
        sums = {
            name: _levels(levels_of([cells[row] for row in rows]))
            if kinds[name] == "category"
            else moments(numbers_in(cells, rows, kinds[name]), kinds[name])
            for name, cells in columns.items()
        }
        every = () if real else {said[row] for row in mine["train"]}
        sums[target] = moments(said[rows]) if real else _levels([said[row] for row in rows], every)
        told[number] = {"client": client, "rows": len(rows), "columns": sums}
        try:
            check_sums(told[number], target)
        except ValueError as error:
            refuse(number, str(error))
    known: Any = how["statistics"]
    if not isinstance(known, Mapping):
        known = known([*told.values()]) if callable(known) else joined(told, target, refuse, how)
    require("sums" in known, "data_options.statistics is pooled or federated; write one of them.")
    labels, outputs, classes = targets_of(values, target, real, known["sums"]["classes"])
    parts: Any = {}
    for half, held in halves.items():
        source = tables[half][1] if half in tables and len(owners[tables[half][1]]) else file
        places = torch.cat(held).sort()[0]
        parts[half] = Dataset(places, labels[source][places], clients=owners[source][places])
    splits = Splits(**parts, num_classes=outputs, classes=classes, client_names=clients)
    return prepared(splits, tables, names, how["read"], made=Rows(known))


def _levels(names: list[str], every: Collection[str] = ()) -> dict[str, Any]:
    """How many rows have each level; ``every`` one may have none."""
    counts = Counter(names)
    return {"kind": "category", "levels": {name: counts[name] for name in sorted({*names, *every})}}
