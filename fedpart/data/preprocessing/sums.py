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
    held, mean, rest, squares = values[~np.isnan(values)], 0.0, 0.0, 0.0
    if len(held):
        with np.errstate(
            all="ignore"
        ):  # what is too large, or too small to be squared, is refused by its name
            mean = float(held[0] + (held - held[0]).mean())
            rest = float((held - mean).mean())
            squares = float(np.square(held - mean - rest).sum())
            squares = math.nan if not squares and np.ptp(held) else squares
    gone = len(values) - len(held)
    return {"kind": kind, "missing": gone, "mean": mean, "rest": rest, "squares": squares}


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
            kind in ("number", "date", "category") and told.keys() == keys, f"{has} sums of no known kind"
        )
        if kind == "category":
            levels = told["levels"]
            require(isinstance(levels, dict) and len(levels) <= LEVELS, f"{has} more than {LEVELS:,} levels")
            real = all(map(_is_name, levels)) and all(map(_is_count, levels.values()))
            require(real and not (name == target and "" in levels), f"{has} levels that no table has")
            require(sum(levels.values()) == rows, f"{has} levels of {sum(levels.values())} of {rows} rows")
            continue
        mean, rest, squares = values = [told[moment] for moment in _MOMENTS]
        require(_is_count(told["missing"]) and told["missing"] <= rows, f"{has} more gaps than rows")
        finite = all(type(value) is float and math.isfinite(value) for value in values)
        require(finite, f"{has} sums that are not finite (values this large or small take another unit)")
        most, held = MOST * (told["missing"] < rows), rows - told["missing"]
        real = max(abs(mean), abs(rest)) <= most and 0 <= squares <= held * most**2 * (held > 1)
        require(real, f"{has} a mean or deviation that its {held} values cannot have")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= ROWS


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST and text_of(value) == value


def joined(
    told: Mapping[int, Sums], target: str, refuse: Callable[[int, str], None], how: Mapping[str, Any]
) -> dict[str, Any]:
    """The preprocessing of all clients' rows.

    Args:
        told: by client, each checked; they are summed in the order of their numbers.
        target: the column to predict.
        refuse: called with a client that does not fit to the others, and a clause why; it is left out.
        how: ``read``, ``standardise``, ``missing`` and ``standardise_target``, see :func:`.prepared`.

    Returns:
        The state of :class:`.Rows`; its ``sums`` are ``rows`` by client, in text, and all ``classes``.
    """
    odd = dict(_odd(told, target))
    for client, why in odd.items():
        refuse(client, why)
    every = {client: told[client] for client in sorted(told) if client not in odd}
    rows, columns, classes = sum(sums["rows"] for sums in every.values()), [], list[str]()
    state = {"standardise": how.get("standardise", False), "missing": how.get("missing", "refuse")}
    same = f"All training rows of all clients have the same {target!r}; name another target."
    for name in next(iter(every.values()))["columns"]:
        parts = [(sums["columns"][name], sums["rows"]) for sums in every.values()]
        kind = next(filter(None, (_kind(*part) for part in parts)), "number")
        if kind == "category":
            counts: Counter[str] = Counter()
            for column, number in parts:
                counts.update(column.get("levels", {"": number}))
            if name != target:
                columns.append(category(name, +counts, rows, "all clients"))
                continue
            require(len(counts) > 1, same)
            classes = [*numbered({"the clients": [*counts]}, target)[1]]
            continue
        held, mean, rest, squares = _sum(parts)
        empty = f"The column {name!r} has no number in any client's training rows; leave it out"
        require(held, f"{empty} (data_options: {{ignore: [{in_yaml(name)}]}}).")
        deviation, moved = (
            math.sqrt(squares / rows),
            {"shift": 0.0, "scale": 1.0, "mean": 0.0, "deviation": 1.0},
        )
        if name == target:
            require(deviation, same)
            unit = {"target": {"mean": mean + rest, "deviation": deviation}}
            state |= unit if how.get("standardise_target", True) else {}
            continue
        if state["standardise"]:
            varies = deviation > 8 * np.finfo(np.float64).eps * abs(mean)
            moved |= {"shift": mean, **({"mean": rest, "deviation": deviation} if varies else {})}
        gaps = {"fill": None if state["missing"] == "refuse" else mean + rest}
        gaps["indicator"] = state["missing"] == "indicator" and held < rows
        columns.append({"name": name, "kind": kind, **moved, **gaps})
    by_client = {str(client): sums["rows"] for client, sums in every.items()}
    more = {"read": dict(how["read"]), "sums": {"rows": by_client, "classes": classes}}
    return {"kind": "table", "columns": columns, **state, **more}


def _odd(told: Mapping[int, Sums], target: str) -> Iterator[tuple[int, str]]:
    """Clients that do not fit to most others, and why; of two that do not fit to each other the later one."""
    forms = {
        client: {name: _kind(column, sums["rows"]) for name, column in sums["columns"].items()}
        for client, sums in sorted(told.items())
    }
    usual = dict(Counter(frozenset(form.items()) for form in forms.values()).most_common(1)[0][0])
    first, classes = dict[str, int](), dict[str, int]()
    for client, form in forms.items():
        both = {name: (form.get(name, "not there"), usual.get(name, "not there")) for name in {*form, *usual}}
        strange = sorted(name for name, kinds in both.items() if len({*kinds} - {None}) > 1)
        name, merged = (
            told[client]["client"],
            classes | told[client]["columns"].get(target, {}).get("levels", {}),
        )
        if strange:
            kinds = "is {}, and {} at others".format(*both[strange[0]])
            yield client, f"its column {strange[0]!r} {kinds}; repair it, or name those that are categorical"
        elif first.setdefault(name, client) != client:
            yield client, f"its rows are of {name!r}, as those of client {first[name]} are"
        else:
            try:
                numbered({"the clients": [*merged]}, target)
                classes, usual = merged, {name: usual[name] or form[name] for name in form}
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
            apart = (column["mean"] - mean) + (column["rest"] - rest)
            share, first = more / (count + more), not count
            squares += column["squares"] + apart * apart * count * share
            moved = column["mean"] if first else mean + (rest + apart * share)
            rest = column["rest"] if first else (mean - moved) + (rest + apart * share)
            count, mean = count + more, moved
    return count, mean, rest, squares
