"""Sums: what clients tell of their own rows, from which the preprocessing of all rows is made: their names,
how many training rows they have, and by column, the target among them, counts of levels or moments."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fedpart.checks import require
from fedpart.data.cells import Floats, ignoring, numbered, text_of
from fedpart.data.preprocessing.fitting import category

Sums = Mapping[str, Any]
LEVELS, LONGEST = 10_000, 500  # levels that a client may bring for a column, characters of a name
ROWS, MOST = 10**9, 1e100  # rows, and the largest mean: so all sums are finite
_KEYS = {kind: {"kind", "missing", "mean", "rest", "squares"} for kind in ("number", "date")}
_KEYS["category"] = {"kind", "levels"}


def moments(values: Floats, kind: str = "number") -> dict[str, Any]:
    """Of numbers or dates ``[n]``, NaN where there is none: how many are ``missing``, the ``mean`` and the
    ``rest`` that float64 leaves of it, and the sum of ``squares`` of deviations from both."""
    held, mean, rest, squares = values[~np.isnan(values)], 0.0, 0.0, 0.0
    if len(held):
        # What is too large, or too small to be squared, is refused by its name.
        with np.errstate(all="ignore"):
            mean = float(held[0] + (held - held[0]).mean())
            rest = float((held - mean).mean())
            squares = float(np.square(held - mean - rest).sum())
            squares = math.nan if not squares and np.ptp(held) else squares
    gone = len(values) - len(held)
    return {"kind": kind, "missing": gone, "mean": mean, "rest": rest, "squares": squares}


def check_sums(sums: Any, target: str) -> None:
    """Refuse what cannot be the sums of a client; the ValueError has a clause that names the column."""
    whole = isinstance(sums, dict) and sums.keys() == {"client", "rows", "columns"}
    require(whole and isinstance(sums["columns"], dict), "they are no mapping of client, rows and columns")
    rows, columns = sums["rows"], sums["columns"]
    named = _are_counts([rows]) and rows and _are_names([sums["client"], *columns]) and target in columns
    fault = f"the number of rows is {rows!r:.40}, a name is none of a table, or {target!r} is not there"
    require(named, fault)
    for name, told in columns.items():
        has, kind = f"the column {name!r} has", told.get("kind") if isinstance(told, dict) else None
        known = isinstance(kind, str) and kind in _KEYS and told.keys() == _KEYS[kind]
        require(known, f"{has} sums of no known kind")
        if kind == "category":
            levels = told["levels"]
            require(isinstance(levels, dict) and len(levels) <= LEVELS, f"{has} more than {LEVELS:,} levels")
            real = (
                _are_names(levels) and _are_counts(levels.values()) and not (name == target and "" in levels)
            )
            require(real and sum(levels.values()) == rows, f"{has} levels that {rows} rows cannot have")
            continue
        mean, rest, squares = values = told["mean"], told["rest"], told["squares"]
        require(_are_counts([told["missing"]]) and told["missing"] <= rows, f"{has} more gaps than rows")
        require(name != target or not told["missing"], f"{has} gaps, and is what is predicted")
        finite = all(type(value) is float and math.isfinite(value) for value in values)
        require(finite, f"{has} sums that are not finite (values this large or small take another unit)")
        most, held = MOST * (told["missing"] < rows), rows - told["missing"]
        real = max(abs(mean), abs(rest)) <= most and 0 <= squares <= held * most**2 * (held > 1)
        require(real, f"{has} a mean or deviation that its {held} values cannot have")


def _are_counts(values: Iterable[Any]) -> bool:
    return all(type(value) is int and 0 <= value <= ROWS for value in values)


def _are_names(values: Iterable[Any]) -> bool:
    return all(isinstance(text, str) and len(text) <= LONGEST and text_of(text) == text for text in values)


def joined(
    told: Mapping[int, Sums], target: str, refuse: Callable[[int, str], None], how: Mapping[str, Any]
) -> dict[str, Any]:
    """The preprocessing of all clients' rows, a state of :class:`.Rows`; its ``sums`` are ``rows`` by client,
    and all ``classes``. ``told``, each checked, is summed in the order of clients; ``refuse`` is called with
    one that does not fit to the others, who is left out, and why; ``how``: see :func:`.prepared`."""
    odd = dict(_odd(told, target))
    for client, why in odd.items():
        refuse(client, why)
    every = {client: told[client] for client in sorted(told) if client not in odd}
    require(every, "No client has sums that fit to another's; repair their tables.")
    by_client = {str(client): sums["rows"] for client, sums in every.items()}
    columns, classes = list[dict[str, Any]](), list[str]()
    rows, same = sum(by_client.values()), f"All training rows have the same {target!r}; name another target."
    state = {"standardise": how.get("standardise", False), "missing": how.get("missing", "refuse")}
    for name in next(iter(every.values()))["columns"]:
        parts = [(sums["columns"][name], sums["rows"]) for sums in every.values()]
        kind = next(filter(None, (_kind(*part) for part in parts)), "number")
        if kind == "category":
            counts: Counter[str] = Counter()
            for column, number in parts:
                counts.update(column.get("levels", {"": number}))
            if name == target:
                require(len(counts) > 1, same)
                classes = [*numbered({"the clients": [*counts]}, target)[1]]
            else:
                columns.append(category(name, +counts, rows, "all clients"))
            continue
        held, mean, rest, squares = _sum(parts)
        remedy = f"leave it out {ignoring(name)}."
        require(held, f"The column {name!r} has no number in any client's training rows; {remedy}")
        deviation = math.sqrt(squares / rows)
        if name == target:
            require(deviation, same)
            unit = {"target": {"mean": mean + rest, "deviation": deviation}}
            state |= unit if how.get("standardise_target", True) else {}
            continue
        shift = mean if state["standardise"] else 0.0
        varies = state["standardise"] and deviation > 8 * np.finfo(np.float64).eps * abs(mean)
        spread = deviation if varies else 1.0
        moved = {"shift": shift, "scale": 1.0, "mean": rest * varies, "deviation": spread}
        fill, gaps = None if state["missing"] == "refuse" else mean + rest, state["missing"] == "indicator"
        columns.append({"name": name, "kind": kind, **moved, "fill": fill, "indicator": gaps and held < rows})
    more = {"read": dict(how["read"]), "sums": {"rows": by_client, "classes": classes}}
    return {"kind": "table", "columns": columns, **state, **more}


def _odd(told: Mapping[int, Sums], target: str) -> Iterator[tuple[int, str]]:
    """Clients that do not fit to most others, and why; of two that do not fit to each other the later one."""
    kinds_of = {
        client: {name: _kind(column, sums["rows"]) for name, column in sums["columns"].items()}
        for client, sums in sorted(told.items())
    }
    usual = dict(Counter(frozenset(kinds.items()) for kinds in kinds_of.values()).most_common(1)[0][0])
    first, classes = dict[str, int](), dict[str, int]()
    for client, kinds in kinds_of.items():
        both = {name: (kinds.get(name, "not there"), usual.get(name, "not there")) for name in kinds | usual}
        strange = sorted(
            name for name, pair in both.items() if "not there" in pair or len({*pair} - {None}) > 1
        )
        try:
            if strange:
                here = "is {}, and {} at others".format(*(kind or "empty" for kind in both[strange[0]]))
                raise ValueError(f"its column {strange[0]!r} {here}; repair it, or name the categorical ones")
            name, merged = told[client]["client"], classes | told[client]["columns"][target].get("levels", {})
            same = f"its rows are of {name!r}, as those of client {first.setdefault(name, client)} are"
            require(first[name] == client, same)
            numbered({"the clients": [*merged]}, target)
            classes, usual = merged, {name: usual[name] or kinds[name] for name in kinds}
        except ValueError as error:
            yield client, str(error).rstrip(".")


def _kind(column: Mapping[str, Any], rows: int) -> str | None:
    """A column's kind, if it has any value that tells it."""
    return None if column.get("missing") == rows else column["kind"]


def _sum(parts: Iterable[tuple[Mapping[str, Any], int]]) -> tuple[int, float, float, float]:
    """Count, mean, rest and squares of all (Chan et al. 1979, Eq. 2.1), left to right."""
    count, mean, rest, squares = 0, 0.0, 0.0, 0.0
    for column, rows in parts:
        if more := rows - column["missing"]:
            apart = (column["mean"] - mean) + (column["rest"] - rest) if count else 0.0
            mean, rest = (mean, rest) if count else (column["mean"], column["rest"])
            step = rest + apart * more / (count + more)
            squares += column["squares"] + apart * apart * count * more / (count + more)
            count, mean, rest = count + more, mean + step, (mean - (mean + step)) + step
    return count, mean, rest, squares
