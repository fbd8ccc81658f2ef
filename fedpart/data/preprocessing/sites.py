"""A table whose preprocessing is made of what clients tell, each of its own rows: here, or far apart."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.data.cells import numbered, texts_of
from fedpart.data.columns import Columns, Roles, floats_of, targets_of
from fedpart.data.dataset import Dataset, Splits
from fedpart.data.preprocessing.fitting import Categorical, Missing, kinds_of, numbers_in, prepared
from fedpart.data.preprocessing.rows import Rows, levels_of
from fedpart.data.preprocessing.sums import Sums, check_sums, joined, levels_in, moments_of
from fedpart.data.splitting.hold_out import with_held_out

Join = Callable[[list[Sums]], Mapping[str, Any]]
"""From the sums of the clients whose rows are here to the preprocessing of all, see :func:`.joined`."""


def splits_of_clients(
    tables: Mapping[str, tuple[Columns, str]],
    roles: Roles,
    read: Mapping[str, Any],
    divided: Mapping[str, Any],
    real: bool,
    join: Join | None = None,
    *,
    categorical: Categorical = None,
    missing: Missing = "refuse",
    **options: Any,
) -> Splits:
    """A table's splits, of which each client holds out rows by itself, ``divided`` as :func:`.with_held_out`
    says; ``join``: where the preprocessing comes from, None: all clients are here. See :func:`.joined`."""
    names, target, (table, file) = roles.inputs(*tables["train"]), roles.target, tables["train"]
    values, owned = (
        {file: columns[str(role)] for columns, file in tables.values()} for role in (target, roles.client)
    )
    owners, clients = numbered(owned, str(roles.client))
    columns, cells = {name: table[name] for name in names}, table[target]
    targets: Any = floats_of(cells).astype(np.float32) if real else texts_of(cells, target, file)
    told: dict[int, Sums] = {}
    halves: dict[str, list[Tensor]] = {"train": [], "validation": [], "test": []}

    def refuse(client: int, why: str) -> None:
        raise ValueError(f"The rows of {clients[client]!r} in {file} cannot be summed with others: {why}.")

    for number, client in enumerate(clients):
        mine = {part: torch.nonzero(owners[name] == number)[:, 0] for part, (_, name) in tables.items()}
        sets = {part: Dataset(rows, torch.zeros(len(rows))) for part, rows in mine.items()}
        for half, dataset in with_held_out(sets, **divided).items() if len(mine["train"]) else sets.items():
            halves[half].append(dataset.inputs)
        if not len(mine["train"]):
            continue
        rows = halves["train"][-1].numpy()
        kinds = kinds_of(columns, rows, categorical, missing, file)
        sums = {
            name: levels_in(levels_of([cells[row] for row in rows]))
            if kinds[name] == "category"
            else moments_of(numbers_in(cells, rows, kinds[name]), kinds[name])
            for name, cells in columns.items()
        }
        if real:
            sums[target] = moments_of(targets[rows].astype(np.float64))
        else:
            sums[target] = levels_in([targets[row] for row in rows], {targets[row] for row in mine["train"]})
        told[number] = {"client": client, "rows": len(rows), "columns": sums}
        try:
            check_sums(told[number], target)
        except ValueError as error:
            refuse(number, str(error))
    if join is None:
        known: Mapping[str, Any] = joined(told, target, refuse, read=read, missing=missing, **options)
    else:
        known = join([*told.values()])
    labels, outputs, classes = targets_of(values, target, real, known["sums"]["classes"])
    parts: Any = {}
    for half, held in halves.items():
        source = tables[half][1] if half in tables and len(owners[tables[half][1]]) else file
        places = torch.cat(held).sort()[0]
        parts[half] = Dataset(places, labels[source][places], clients=owners[source][places])
    splits = Splits(**parts, num_classes=outputs, classes=classes, client_names=clients)
    return prepared(splits, tables, names, read, made=Rows(known))
