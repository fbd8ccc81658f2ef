import json
import re

import pytest
from fake_runs import write_run

from simulations.config.load import ExperimentConfig
from simulations.folders.cell import Cell
from simulations.results.records import POINTS, read_records, write_record


def recorded(tmp_path, rounds=2, seed=0, scores=None, **of):
    of = {"table": "cells", "scale": None, "row": "MNIST, ours", "seed": seed} | of
    config = ExperimentConfig(rounds=rounds, evaluate_every=1, seed=seed, data_dir=str(tmp_path / "data"))
    cell = Cell("one", config, tmp_path / "runs" / str(of))
    write_run(cell.folder, config, scores or [0.5] * (rounds - 1) + [0.75])
    return write_record(tmp_path / "raw", cell, of)


def test_a_record_is_read_as_it_was_written(tmp_path):
    recorded(tmp_path, seed=1)
    recorded(tmp_path, seed=0)
    recorded(tmp_path, scale="short")
    recorded(tmp_path, table="cells-of-others")
    ((row, found),) = read_records("cells", None, tmp_path / "raw").items()
    assert (row, [one["seed"] for one in found]) == ("MNIST, ours", [0, 1])
    assert found[0]["length"] == 2 and found[0]["metrics"][-1]["val_accuracy"] == 0.75
    assert len(read_records("cells", "short", tmp_path / "raw")["MNIST, ours"]) == 1


@pytest.mark.parametrize("rounds", (1, POINTS, POINTS + 1, 2 * POINTS + 7))
def test_metrics_are_thinned_to_so_many_points_of_which_one_is_the_last(tmp_path, rounds):
    kept = [line["round"] for line in json.loads(recorded(tmp_path, rounds).read_text())["metrics"]]
    assert kept[-1] == rounds and kept[0] <= 3 and len(kept) <= POINTS
    assert rounds > POINTS or kept == list(range(1, rounds + 1))


def test_the_points_that_are_kept_are_those_with_scores(tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.results.records.OBJECTIVES", ["val_accuracy"])
    record = json.loads(recorded(tmp_path, rounds=4, scores=[None, 0.5, None, 0.75]).read_text())
    assert [line["round"] for line in record["metrics"]] == [2, 4]


def test_no_path_of_a_machine_is_in_a_record(tmp_path):
    assert str(tmp_path) not in recorded(tmp_path).read_text()


@pytest.mark.parametrize("content", ("{", "[]", '{"table": "cells"}'))
def test_a_file_that_is_no_record_is_named(tmp_path, content):
    file = recorded(tmp_path)
    file.write_text(content)
    with pytest.raises(ValueError, match=re.escape(f"{file} is no record of a run")):
        read_records("cells", None, tmp_path / "raw")
