"""Sums: what clients tell of their own rows, from which the preprocessing of all rows is made."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fedpart.checks import require
from fedpart.data.cells import Floats, in_yaml, numbered, text_of
from fedpart.data.preprocessing.fitting import category

Sums = Mapping[str, Any]
"""A client's name, ``client``, its number of training ``rows``, and ``columns`` by name, the target among
them: see :func:`moments_of` and :func:`levels_in`."""
LEVELS, LONGEST = 10_000, 500  # levels that a client may bring for a column, characters of a name
ROWS, MOST = 10**9, 1e100  # rows, and the largest mean: so all sums are finite
_MOMENTS = ("mean", "rest", "squares")


def moments_of(values: Floats, kind: str = "number") -> dict[str, Any]:
    """Of numbers or dates ``[n]``, NaN where there is none: how many are ``missing``, the ``mean`` and the
    ``rest`` that float64 leaves of it, and the sum of ``squares`` of deviations from both."""
    held, moments = values[~np.isnan(values)], (0.0, 0.0, 0.0)
    if len(held):
        with np.errstate(all="ignore"):  # what is too large is refused by its name
            mean = held[0] + (held - held[0]).mean()
            rest = (held - mean).mean()
            squares = np.square(held - mean - rest).sum()
            lost = not squares and np.ptp(held)  # too small to be squared
        moments = float(mean), float(rest), math.nan if lost else float(squares)
    return {"kind": kind, "missing": len(values) - len(held), **dict(zip(_MOMENTS, moments, strict=True))}


def levels_in(names: Iterable[str], more: Iterable[str] = ()) -> dict[str, Any]:
    """How many rows have each level; the empty one is what is missing. ``more`` levels are of other rows."""
    return {
        "kind": "category",
        "levels": dict.fromkeys(sorted(more), 0) | dict(sorted(Counter(names).items())),
    }


def check_sums(sums: Any, target: str) -> None:
    """Refuse what cannot be the sums of a client; the ValueError has a clause that names the column."""
    whole = isinstance(sums, dict) and sums.keys() == {"client", "rows", "columns"}
    require(whole and isinstance(sums["columns"], dict), "they are no mapping of client, rows and columns")
    rows, columns = sums["rows"], sums["columns"]
    require(_is_count(rows) and rows, f"the number of rows is {rows!r:.40}")
    require(all(map(_is_name, (sums["client"], *columns))), "a name in them is none of a table")
    require(target in columns, f"they have no column {target!r}")
    for name, told in columns.items():
        has, kind = f"the column {name!r} has", told.get("kind") if isinstance(told, dict) else None
        keys = {"kind", "levels"} if kind == "category" else {"kind", "missing", *_MOMENTS}
        require(
            kind in ("number", "date", "category") and told.keys() == keys,
            f"{has} sums of no kind that is known",
        )
        if kind == "category":
            levels = told["levels"]
            require(isinstance(levels, dict) and len(levels) <= LEVELS, f"{has} more than {LEVELS:,} levels")
            real = all(map(_is_name, levels)) and all(map(_is_count, levels.values()))
            require(real and not (name == target and "" in levels), f"{has} levels that no table has")
            require(sum(levels.values()) == rows, f"{has} levels of {sum(levels.values())} of {rows} rows")
            continue
        values = [told[moment] for moment in _MOMENTS]
        require(_is_count(told["missing"]) and told["missing"] <= rows, f"{has} more gaps than rows")
        finite = all(type(value) is float and math.isfinite(value) for value in values)
        require(finite, f"{has} sums that are not finite (values this large or small take another unit)")
        (mean, rest, squares), held = values, rows - told["missing"]
        require(
            max(abs(mean), abs(rest)) <= MOST * bool(held), f"{has} a mean that {held} values cannot have"
        )
        most = held * MOST**2 * (held > 1)
        require(0 <= squares <= most, f"{has} a sum of squares that {held} values cannot have")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= ROWS


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST and text_of(value) == value


def joined(
    told: Mapping[int, Sums],
    target: str,
    refuse: Callable[[int, str], None],
    *,
    read: Mapping[str, Any],
    standardise: bool = False,
    missing: str = "refuse",
    standardise_target: bool = True,
) -> dict[str, Any]:
    """The preprocessing of all clients' rows: the state of :class:`.Rows`, whose ``sums`` are the numbers of
    ``clients`` and ``rows``, and all ``classes``.

    Args:
        told: by client, each checked; they are summed in the order of their numbers.
        target: the column to predict.
        refuse: called with a client that does not fit to the others, and a clause why; it is left out.
        read, standardise, missing, standardise_target: see :func:`.prepared`.
    """
    odd = dict(_odd(told, target))
    for client, why in odd.items():
        refuse(client, why)
    every = [sums for client, sums in sorted(told.items()) if client not in odd]
    rows, columns = sum(sums["rows"] for sums in every), []
    state: dict[str, Any] = {"standardise": standardise, "missing": missing, "read": dict(read)}
    classes: tuple[str, ...] = ()
    same = (
        f"All clients' training rows have one {target!r}, so there is nothing to learn; name another target."
    )
    for name in every[0]["columns"]:
        kind = next((kind for sums in every for kind in _kind(sums, name)), "number")
        here = [(sums["columns"][name], sums["rows"]) for sums in every]
        if kind == "category":
            counts: Counter[str] = Counter()
            for column, number in here:
                counts.update(column.get("levels", {"": number}))
            if name == target:
                require(len(counts) > 1, same)
                classes = numbered({"the clients": [*counts]}, target)[1]
            else:
                columns.append(category(name, +counts, rows, "all clients"))
            continue
        held, mean, rest, squares = _sum(here)
        empty = f"The column {name!r} has no number in any client's training rows; leave it out"
        require(held, f"{empty} (data_options: {{ignore: [{in_yaml(name)}]}}).")
        deviation = math.sqrt(squares / rows)
        if name == target:
            require(deviation, same)
            if standardise_target:
                state["target"] = {"mean": mean + rest, "deviation": deviation}
            continue
        moved = {"shift": 0.0, "scale": 1.0, "mean": 0.0, "deviation": 1.0}
        if standardise:
            varies = deviation > 8 * np.finfo(np.float64).eps * abs(mean)
            moved |= {"shift": mean, **({"mean": rest, "deviation": deviation} if varies else {})}
        gaps = {"fill": None if missing == "refuse" else mean + rest}
        gaps["indicator"] = missing == "indicator" and held < rows
        columns.append({"name": name, "kind": kind, **moved, **gaps})
    said = {"clients": len(every), "rows": rows, "classes": classes}
    return {"kind": "table", **state, "columns": columns, "sums": said}


def _odd(told: Mapping[int, Sums], target: str) -> Iterator[tuple[int, str]]:
    """Clients that do not fit to most others, and why; of two that do not fit to each other the later one."""
    counts = Counter(name for sums in told.values() for name in sums["columns"])
    names = {name for name, count in counts.items() if 2 * count > len(told)}
    kinds = Counter(
        (name, kind) for sums in told.values() for name in sums["columns"] for kind in _kind(sums, name)
    )
    usual = {name: kind for (name, kind), _ in reversed(kinds.most_common())}
    first, classes = dict[str, int](), dict[str, int]()
    for client, sums in sorted(told.items()):
        columns, name = sums["columns"], sums["client"]
        strange = [(name, kind) for name in columns for kind in _kind(sums, name) if kind != usual[name]]
        if differing := sorted(names ^ columns.keys()):
            word = "the" if differing[0] in columns else "no"
            yield client, f"it has {word} column {differing[0]!r}, unlike others"
        elif strange:
            kind = f"is a {strange[0][1]}, and a {usual[strange[0][0]]} at others"
            yield (
                client,
                f"its column {strange[0][0]!r} {kind}; repair it, or name those that are categorical",
            )
        elif first.setdefault(name, client) != client:
            yield client, f"its rows are of {name!r}, as those of client {first[name]} are"
        else:
            merged = classes | columns[target].get("levels", {})
            try:
                numbered({"the clients": [*merged]}, target)
                classes = merged
            except ValueError as error:
                yield client, str(error).rstrip(".")


def _kind(sums: Sums, name: str) -> list[str]:
    """A column's kind, if it has any value that tells it."""
    column = sums["columns"][name]
    return [] if column.get("missing") == sums["rows"] else [column["kind"]]


def _sum(here: Iterable[tuple[Mapping[str, Any], int]]) -> tuple[int, float, float, float]:
    """Count, mean, rest and squares of all (Chan et al. 1979, Eq. 2.1), left to right."""
    count, mean, rest, squares = 0, 0.0, 0.0, 0.0
    for column, rows in here:
        if more := rows - column["missing"]:
            apart = (column["mean"] - mean) + (column["rest"] - rest)
            share, first = more / (count + more), not count
            squares += column["squares"] + apart * apart * count * share
            moved = column["mean"] if first else mean + (rest + apart * share)
            rest = column["rest"] if first else (mean - moved) + (rest + apart * share)
            count, mean = count + more, moved
    return count, mean, rest, squares
