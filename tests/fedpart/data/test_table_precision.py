"""Numbers that float32 cannot hold, in files and in memory: standardised as numpy does it, or refused."""

from functools import partial

import numpy as np
import pytest
import refusals
import torch
from leaf import write_leaf
from problems import Lazy
from torch import nn

from fedpart import Task, federate, fit
from fedpart.data import Dataset, load_splits
from fedpart.nn.likelihoods import Gaussian

ROWS = np.arange(72)
LATE = {
    "milliseconds": 1_700_000_000_000 + 1000 * ROWS,
    "seconds": 1_700_000_000 + ROWS,
    "an id": 2**24 + ROWS,
    "degrees of a survey": 5_412_345.25 + ROWS / 100,
    "tiny": 1e-200 * ROWS**2,
    "huge": 1e200 * ROWS**2,
}
FAR = {
    "a stamp, and 0 for none": (np.where(ROWS == 0, 0.0, 1_700_000_000.5 + ROWS), "0.0"),
    "milliseconds, and 0": (np.where(ROWS == 5, 0, LATE["milliseconds"]), "0.0"),
    "small, and one large": (np.where(ROWS == 70, 1e9, 1e-3 * ROWS), "1000000000.0"),
    "small, and one beyond float64": (np.where(ROWS == 70, 1e25, 1e-3 * ROWS), "1e.25"),
    "a bill, and far below": (np.where(ROWS == 3, -1e15, ROWS), "-1000000000000000.0"),
}
HELD = {
    "a sum in binary": np.where(ROWS % 2, 0.3, 0.1 + 0.2) + np.where(ROWS > 9, 0, 1),
    "normal": np.random.default_rng(0).normal(300, 10, 72_000),
    "constant": np.full(72, 0.1),
}


def written(path, column):
    lines = [f"{value!s},{i % 2},{i / 7}" for i, value in enumerate(column.tolist())]
    path.write_text("\n".join(["x,ill,days", *lines]) + "\n")
    return str(path)


def table(path, **options):
    options = {"target": "ill", "ignore": ["days"], "test": 0, "validation": 0, **options}
    return load_splits("table", path, **options)


@pytest.mark.parametrize("what", LATE)
def test_standardised_in_float64(what, tmp_path):
    column = np.asarray(LATE[what], dtype=np.float64)
    found = table(written(tmp_path / "a.csv", column), standardise=True).train.inputs
    scaled = column / np.abs(column).max()
    wanted = (scaled - scaled.mean()) / scaled.std()
    assert found.dtype == torch.float32 and len(found.unique()) == len(np.unique(wanted.astype(np.float32)))
    np.testing.assert_allclose(found[:, 0].numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_standardised_with_an_outlier(tmp_path):
    """As without: refused, where float32 has no place for what lies beside it."""
    says = r"^The column 'x', standardised, .* such as .* and .*, for an outlier, {}, .*\{{ignore: \[x\]\}}"
    rows = []
    for i, (what, (column, outlier)) in enumerate(FAR.items()):
        file = written(tmp_path / f"{i}.csv", column.astype(np.float64))
        rows.append((what, partial(table, file, standardise=True), says.format(outlier)))
        if "0" in what:  # the others are apart as they are
            rows.append((f"{what}, as it is", partial(table, file), "'x' of .* are one in float32"))
    refusals.check(rows)
    spread = np.where(ROWS == 70, 1e4, ROWS / 7)
    long = 1_600_000_000_000 + np.random.default_rng(0).integers(0, 3 * 10**10, 50_000)  # of a year, in ms
    for column in (spread, np.r_[spread, HELD["normal"]], long):
        table(written(tmp_path / "far.csv", column), standardise=True)


def test_in_parquet_too_and_nanoseconds(tmp_path):
    late = 1_700_000_000_123_456_789 + 10**9 * ROWS
    wanted = torch.from_numpy((ROWS - 35.5) / ROWS.std()).float()
    found = table(written(tmp_path / "a.csv", late), standardise=True).train.inputs[:, 0]
    torch.testing.assert_close(found, wanted)
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    column = LATE["milliseconds"]
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"x": column, "ill": ROWS % 2, "days": ROWS / 7}), file)
    found = table(str(file), standardise=True).train.inputs[:, 0]
    torch.testing.assert_close(found, wanted)
    refusals.check([("not standardised", partial(table, str(file)), "'x' of .* are one in float32")])


@pytest.mark.parametrize("what", HELD)
def test_what_float32_holds_is_taken(what, tmp_path):
    file = written(tmp_path / "a.csv", HELD[what])
    wanted = torch.from_numpy(HELD[what]).float()
    assert table(file).train.inputs[:, 0].equal(wanted)
    assert what != "constant" or not table(file, standardise=True).train.inputs.any()


def test_what_float32_merges(tmp_path):
    merges = "^The column 'x' of .* has values that are one in float32, such as .*; set standardise: true, or"
    rows = [
        (what, partial(table, written(tmp_path / f"{i}.csv", column)), merges)
        for i, (what, column) in enumerate(LATE.items())
        if what != "huge"
    ]
    huge = written(tmp_path / "huge.csv", LATE["huge"])
    rows.append(("huge", partial(table, huge), r"'x' of .* holds 1e\+200, too large for float32"))
    for beyond in (2**53, 2**60):
        ids = written(tmp_path / f"{beyond}.csv", beyond + ROWS)
        rows += [
            (f"{beyond} {how}", partial(table, ids, standardise=how), "'x' of .* one in float64, such as")
            for how in (True, False)
        ]
    stamps = {"target": "x", "ignore": ["ill"], "real_targets": True}
    late = written(tmp_path / "target.csv", LATE["milliseconds"])
    rows.append(("a target", partial(table, late, **stamps), "The target 'x' .* another unit, or subtract"))
    refusals.check(rows)


def leaf(folder, columns):
    """Two users, who have every other row."""
    x = np.stack(columns, 1).tolist()
    users = {f"f{u}": (x[u::2], [i % 3 for i in range(len(x[u::2]))]) for u in (0, 1)}
    return partial(load_splits, "leaf", write_leaf(folder, users), test=0, validation=0)


def test_leafs_examples_that_float32_holds_and_those_that_it_merges(tmp_path):
    for what, column in HELD.items():
        column = column[:720]
        found = leaf(tmp_path / what, [column, column])().train.inputs
        wanted = torch.from_numpy(np.concatenate([column[0::2], column[1::2]])).float()
        assert found.dtype == torch.float32 and found[:, 1].equal(wanted)
    rows = [
        (what, leaf(tmp_path / what, [ROWS, column]), r"^x of .*train/\[:, 1\] (has|holds) .* unit, or")
        for what, column in (*LATE.items(), ("a stamp, and 0", FAR["a stamp, and 0 for none"][0]))
    ]
    refusals.check(rows)


def in_memory(column, kind):
    numbers = np.stack([ROWS / 7, np.asarray(column, dtype=np.float64)[:72]], 1)
    return (numbers if kind == "array" else torch.from_numpy(numbers), torch.from_numpy(ROWS % 3))


def test_examples_in_memory_that_float32_merges():
    net, held = nn.Linear(2, 3), in_memory(ROWS, "array")
    merges = r"Dataset inputs\[:, 1\] .*; write it in another unit, .* or compute with Task\(module, precis"
    rows = [
        (f"{what}, {kind}", partial(federate, net, [in_memory(column, kind)] * 3, rounds=1), merges)
        for what, column in LATE.items()
        for kind in ("array", "tensor")
    ]
    late = in_memory(LATE["seconds"], "tensor")
    real = (held[0], LATE["seconds"][:, None] * 1.0)
    task = Task(nn.Linear(2, 1), likelihood=Gaussian(), samples=1)
    rows += [
        ("one place", partial(fit, net, late, iterations=1), merges),
        ("chunks", partial(fit, net, [held, held, late], iterations=1), merges),
        ("validation", partial(federate, net, [held] * 3, rounds=1, validation=late), merges),
        ("test", partial(federate, net, [held] * 3, rounds=1, test=late), merges),
        ("read late", partial(federate, net, Lazy(lambda _: late, 3), rounds=1), merges),
        ("targets", partial(federate, task, [real] * 3, rounds=1, method="fedavg"), r"targets\[:, 0\] has v"),
    ]
    refusals.check((what, call, Exception, says) for what, call, says in rows)


def test_the_way_out_of_examples_in_memory():
    """In float64 they are computed with as they are; without their mean they fit into float32."""
    data = in_memory(1_700_000_000 + ROWS, "array")
    centred = (data[0] - data[0].mean(0), data[1])
    assert federate(nn.Linear(2, 3), [centred] * 3, rounds=1).metrics
    task = Task(nn.Linear(2, 3), samples=1, precision="fp64")
    run = partial(federate, task, rounds=1, local={"learning_rate": 1e-19})
    result = run([data] * 3)
    for part in (data, (torch.from_numpy(data[0]), data[1])):
        assert torch.equal(run([part] * 3).state.w, result.state.w)
    with torch.no_grad():
        wanted = result.module()(torch.from_numpy(data[0]))
    torch.testing.assert_close(result.predict(torch.from_numpy(data[0])), wanted, rtol=1e-12, atol=0)
    assert len({float(row[0]) for row in wanted}) == 72
    shard = Dataset(torch.rand(5, 2).double(), torch.arange(5) % 3)
    assert federate(nn.Linear(2, 3), [shard] * 3, rounds=1, validation=shard).metrics
