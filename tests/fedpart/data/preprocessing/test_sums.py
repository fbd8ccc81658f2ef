"""Sums of clients: the statistics of pooled rows, and what of a client's is refused."""

import json
import math
from functools import cache, partial

import numpy as np
import pytest
import refusals
import torch

from fedpart.data import load_table
from fedpart.data.preprocessing.fitting import fitted
from fedpart.data.preprocessing.sums import LEVELS, check_sums, joined, moments

READ = {"delimiter": None, "decimal": None}
HOW = {"read": READ, "standardise": True}


def table(rows=240, seed=0, far=1.7e9):
    """Rows of five hospitals: one has a single row, and one has none of a level; with gaps, dates, a column
    that never changes, one far from 0, and one of which a client has nothing."""
    draw = np.random.default_rng(seed)
    site = ["alone"] + [("east", "north", "south", "west")[place] for place in draw.integers(0, 4, rows - 1)]
    ward = [str(name) for name in draw.choice(["a", "b", "c", "", "d"], rows, p=[0.4, 0.3, 0.2, 0.05, 0.05])]
    ward[7], ward[8] = "once", "twice"
    return {
        "site": site,
        "age": [None if draw.random() < 0.1 else float(value) for value in draw.normal(50, 9, rows)],
        "stamp": (far + draw.normal(0, 1, rows)).tolist(),
        "ward": ["a" if place == "west" else name for place, name in zip(site, ward, strict=True)],
        "day": [
            f"2024-{1 + number // 28:02d}-{1 + number % 28:02d}" for number in draw.integers(0, 300, rows)
        ],
        "same": [3.1] * rows,
        "lacking": [None if place == "north" else float(draw.normal()) for place in site],
        "ill": [str(name) for name in draw.choice(["no", "yes", "maybe"], rows)],
        "cost": (1e4 + 300 * draw.normal(size=rows)).tolist(),
    }


def loaded(columns, target="ill", **options):
    others = {"ill": "cost", "cost": "ill"}[target]
    usual = {"standardise": True, "categorical": "auto", "missing": "indicator", "statistics": "federated"}
    options = usual | options
    return load_table(columns, target=target, client="site", ignore=[others], **options)


def rows_of(columns, splits, name="stamp"):
    """The training rows' places in the table, by a column that tells them apart."""
    made = splits.preprocessing.state["columns"]
    place = [column["name"] for column in made].index(name)
    unit = made[place]
    values = unit["shift"] + unit["scale"] * (
        unit["mean"]
        + unit["deviation"]
        * splits.train.inputs[:, [c["name"] for c in made if c["kind"] != "category"].index(name)].double()
    )
    every = torch.tensor(columns[name], dtype=torch.float64)
    return (every[None] - values[:, None]).abs().argmin(1).numpy()


@pytest.mark.parametrize("missing", ["mean", "indicator"])
@pytest.mark.parametrize("standardise", [True, False])
def test_they_are_the_statistics_of_the_pooled_rows(missing, standardise):
    columns = table(far=1.7e9 if standardise else 0.0)
    splits = loaded(columns, missing=missing, standardise=standardise)
    rows = rows_of(columns, splits)
    assert len(set(rows)) == len(splits.train)
    inputs = {name: columns[name] for name in columns if name not in ("site", "ill", "cost")}
    pooled = fitted(inputs, rows, "here", READ, standardise=standardise, categorical="auto", missing=missing)
    state = splits.preprocessing.state
    assert [column["name"] for column in state["columns"]] == list(inputs)
    for ours, theirs in zip(state["columns"], pooled.state["columns"], strict=True):
        if ours["kind"] == "category":
            assert ours == theirs and ours["rare"] and "once" not in ours["levels"]
            continue
        assert all(ours[key] == theirs[key] for key in ("name", "kind", "indicator"))
        mine, others = (
            (of["scale"] * of["deviation"], of["shift"] + of["scale"] * of["mean"]) for of in (ours, theirs)
        )
        assert mine == pytest.approx(others, rel=1e-12, abs=0)
        assert ours["fill"] == pytest.approx(theirs["fill"], rel=1e-12, abs=0)
    raw = pooled.encode(inputs, "here", exact=True)[rows]
    assert torch.allclose(splits.preprocessing(raw), pooled(raw), rtol=1e-6, atol=1e-6)
    assert splits.classes == ("maybe", "no", "yes")
    sums = state["sums"]
    assert [*sums["rows"]] == [*"01234"] and sum(sums["rows"].values()) == len(rows)
    assert sums["classes"] == [*splits.classes]


def sums(rows, client="a", **columns):
    return {"client": client, "rows": rows, "columns": columns}


def test_deviations_are_exact_far_from_zero():
    draw = np.random.default_rng(3)
    parts = [1.7e9 + draw.normal(size=size) for size in (1, 2, 50, 400)]
    told = {
        client: sums(len(part), str(client), x=moments(part), y=moments(part))
        for client, part in enumerate(parts)
    }
    (column,) = joined(told, "y", pytest.fail, HOW)["columns"]
    exact = np.concatenate(parts) - 1.7e9  # no rounding: both are multiples of the same power of two
    assert column["deviation"] == pytest.approx(exact.std(), rel=1e-12)
    assert column["shift"] - 1.7e9 + column["mean"] == pytest.approx(exact.mean(), abs=1e-12)


def test_a_target_of_numbers_has_its_mean_and_deviation():
    columns = table()
    splits = loaded(columns, "cost", real_targets=True)
    targets = splits.train.targets.double()
    unit = splits.preprocessing.state["target"]
    assert unit["mean"] == pytest.approx(targets.mean().item(), rel=1e-12)
    assert unit["deviation"] == pytest.approx(targets.std(correction=0).item(), rel=1e-12)
    plain = loaded(columns, "cost", real_targets=True, standardise_target=False)
    assert "target" not in plain.preprocessing.state


@pytest.mark.parametrize("hold_out", ["random", "last"])
def test_a_client_alone_holds_out_the_same_rows_and_gets_the_same_inputs(hold_out):
    columns = table()
    whole = loaded(columns, hold_out=hold_out)
    for number, client in enumerate(whole.client_names):
        mine = [row for row, name in enumerate(columns["site"]) if name == client]
        part = {name: [cells[row] for row in mine] for name, cells in columns.items()}
        alone = loaded(part, hold_out=hold_out, statistics=whole.preprocessing.state)
        for half, dataset in whole.parts().items():
            held = dataset.clients == number
            assert alone.parts()[half].inputs.equal(dataset.inputs[held]), (client, half)
            assert alone.parts()[half].targets.equal(dataset.targets[held]), (client, half)
        assert alone.num_classes == 3 and alone.client_names == (client,)


@cache
def heard():
    """What each client says of its rows, in JSON."""
    texts = []

    def hear(told):
        texts.extend(map(json.dumps, told))
        every = dict(enumerate(map(json.loads, texts)))
        return joined(every, "ill", pytest.fail, HOW | {"missing": "indicator"})

    loaded(table(), statistics=hear)
    return texts


def told_by():
    return [json.loads(text) for text in heard()]


def put(told, path, value):
    *folders, key = path
    for folder in folders:
        told = told[folder]
    if value is KeyError:
        del told[key]
    else:
        told[key] = value


HOSTILE = {
    "no mapping": ([], None),
    "a name too long": (["client"], "x" * 501),
    "a name that is a number": (["client"], 3),
    "no rows": (["rows"], 0),
    "rows below 0": (["rows"], -4),
    "rows that are true": (["rows"], True),
    "half a row": (["rows"], 2.5),
    "no target": (["columns", "ill"], KeyError),
    "more": (["more"], 1),
    "a column of no kind": (["columns", "age", "kind"], "text"),
    "a column that is a list": (["columns", "age"], []),
    "a key less": (["columns", "age", "rest"], KeyError),
    "a key more": (["columns", "age", "shift"], 0.0),
    "a mean that is text": (["columns", "age", "mean"], "50"),
    "a mean that is not a number": (["columns", "age", "mean"], math.nan),
    "an infinite mean": (["columns", "age", "mean"], math.inf),
    "a mean beyond all": (["columns", "age", "mean"], 1e101),
    "a rest beyond all": (["columns", "age", "rest"], -1e101),
    "squares below 0": (["columns", "age", "squares"], -1e-9),
    "squares beyond all": (["columns", "age", "squares"], 1e300),
    "more gaps than rows": (["columns", "age", "missing"], 10**6),
    "gaps below 0": (["columns", "age", "missing"], -1),
    "levels that are a list": (["columns", "ward", "levels"], ["a"]),
    "a count that is not a number": (["columns", "ward", "levels", "a"], math.nan),
    "a count below 0": (["columns", "ward", "levels", "a"], -1),
    "counts of other rows": (["columns", "ward", "levels", "new"], 1),
    "levels without end": (["columns", "ward", "levels"], {str(number): 1 for number in range(LEVELS + 1)}),
    "a level with white space": (["columns", "ward", "levels", " a"], 0),
    "a class that is empty": (["columns", "ill", "levels", ""], 0),
}


def test_hostile_sums_are_refused():
    rows = []
    for what, (path, value) in HOSTILE.items():
        told = max(told_by(), key=lambda sums: sums["rows"])
        check_sums(told, "ill")
        if path:
            put(told, path, value)
        rows.append((what, partial(check_sums, told if path else value, "ill"), "column|rows|name|mapping"))
    refusals.check(rows)


def test_what_no_rows_could_have():
    """One row has no deviation and no row a mean; a target of numbers has no gaps."""
    for values, change in (([1.0], {"squares": 0.5}), ([math.nan, math.nan], {"mean": 1.0})):
        told = sums(len(values), x=moments(np.array(values)), y=moments(np.zeros(len(values))))
        check_sums(told, "y")
        told["columns"]["x"] |= change
        with pytest.raises(ValueError, match="the column 'x'"):
            check_sums(told, "y")
    check_sums(sums(2, y=moments(np.array([1.0, 2.0]))), "y")
    with pytest.raises(ValueError, match="'y' has gaps, and is what is predicted"):
        check_sums(sums(2, y=moments(np.array([1.0, math.nan]))), "y")


def odd(client, path, value):
    """Whom the sums leave out, and why, when one client's differ."""
    every, left = dict(enumerate(told_by())), {}
    put(every[client], path, value)
    check_sums(every[client], "ill")
    made = joined(every, "ill", left.__setitem__, HOW | {"missing": "mean"})
    assert len(made["sums"]["rows"]) == len(every) - len(left)
    return left


@pytest.mark.parametrize("client", [0, 2])
def test_who_does_not_fit_to_most_is_left_out_by_the_name_of_its_column(client):
    rows = told_by()[client]["rows"]
    number = moments(np.arange(rows, dtype=float))
    empty = moments(np.full(rows, math.nan))
    text = {"kind": "category", "levels": {"a": rows}}
    for path, value, says in (
        (["columns", "more"], number, "'more' is number, and not there at others"),
        (["columns", "more"], empty, "'more' is empty, and not there at others"),
        (["columns", "age"], KeyError, "'age' is not there, and number"),
        (["columns", "age"], text, "'age' is category, and number at others"),
        (["columns", "stamp", "kind"], "date", "'stamp' is date, and number at others"),
        (["columns", "ill"], number, "'ill' is number, and category at others"),
    ):
        left = odd(client, path, value)
        assert list(left) == [client] and says in left[client]


def test_who_lacks_a_column_that_is_empty_at_others_is_left_out():
    every, left = dict(enumerate(told_by())), {}
    for sums in every.values():
        sums["columns"]["notes"] = moments(np.full(sums["rows"], math.nan))
    del every[2]["columns"]["notes"]
    with pytest.raises(ValueError, match="'notes' has no number in any client's"):
        joined(every, "ill", left.__setitem__, HOW | {"missing": "mean"})
    assert list(left) == [2] and "'notes' is not there, and empty at others" in left[2]


def test_of_two_that_do_not_fit_the_later_is_left_out():
    assert list(odd(3, ["client"], "alone")) == [3]
    rows = told_by()[4]["rows"]
    assert list(odd(4, ["columns", "ill", "levels"], {"Yes": 0, "yes": 0, "no": rows})) == [4]


def test_a_table_with_an_odd_client_is_refused_in_a_sentence():
    columns = table()
    pairs = zip(columns["site"], columns["age"], strict=True)
    columns["age"] = ["old" if site == "south" else age for site, age in pairs]
    says = r"^The rows of 'south' in the dict cannot be summed with others: its column 'age' is categ"
    with pytest.raises(ValueError, match=says):
        loaded(columns)


def test_what_has_no_statistics_is_refused():
    columns = table()
    n, nobody = len(columns["ill"]), partial(load_table, columns, target="ill", statistics="federated")
    numbers, same = {"age": [None] * n}, {"ill": ["no"] * n}
    tiny = {"age": [1e-170 * number for number in range(n)]}
    refusals.check(
        [
            ("nobody", nobody, "name the column of clients"),
            ("statistics", lambda: loaded(columns, statistics={"a": 1}), "statistics is pooled or federated"),
            ("no numbers", lambda: loaded(columns | numbers), "'age' has no number in any client's training"),
            ("one class", lambda: loaded(columns | same), "rows have the same 'ill'"),
            ("tiny", lambda: loaded(columns | tiny), "'age' has sums that are not finite"),
        ]
    )
