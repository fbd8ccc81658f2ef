"""Columns that float32 cannot hold: standardised in float64 as numpy does it, or refused."""

from functools import partial

import numpy as np
import pytest
import refusals
import torch

from fedpart.data import load_splits

ROWS = np.arange(72)
LATE = {
    "milliseconds": 1_700_000_000_000 + 1000 * ROWS,
    "seconds": 1_700_000_000 + ROWS,
    "an id": 2**24 + ROWS,
    "degrees of a survey": 5_412_345.25 + ROWS / 100,
    "a stamp, and 0 for none": np.where(ROWS == 0, 0.0, 1_700_000_000.5 + ROWS),
    "tiny": 1e-200 * ROWS**2,
    "huge": 1e200 * ROWS**2,
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


def test_in_parquet_too(tmp_path):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    column = LATE["milliseconds"]
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"x": column, "ill": ROWS % 2, "days": ROWS / 7}), file)
    found = table(str(file), standardise=True).train.inputs[:, 0]
    torch.testing.assert_close(found, torch.from_numpy((ROWS - 35.5) / ROWS.std()).float())
    refusals.check(
        [("not standardised", partial(table, str(file)), ValueError, "'x' of .* are one in float32")]
    )


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
    stamps = {"target": "x", "ignore": ["ill"], "real_targets": True}
    late = written(tmp_path / "target.csv", LATE["milliseconds"])
    rows.append(("a target", partial(table, late, **stamps), "The target 'x' .* another unit, or subtract"))
    refusals.check((what, call, ValueError, says) for what, call, says in rows)
