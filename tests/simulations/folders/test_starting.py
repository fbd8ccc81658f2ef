"""Folders to start from run as they are, and nothing of the user's is overwritten."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from command_line import fedpart, refused, succeeds
from places import ROOT

from simulations.folders.run_directory import read_summary
from simulations.folders.starting import TEMPLATES

FLOWER = """
import client, server
from types import SimpleNamespace
from inprocess_grid import InProcessGrid

config = {"clients": 10, "rounds": 2}
server.app(InProcessGrid(client.app, 10, config), SimpleNamespace(run_config=config))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_what_is_there_is_left_alone():
    Path("mine").mkdir()
    Path("mine/table.yaml").write_text("data: mine")
    refused(fedpart("new", "table", "mine"), "mine is there and not empty; name a new folder")
    refused(fedpart("new", "table", "mine/table.yaml"), "is there and not empty")
    assert [file.name for file in Path("mine").iterdir()] == ["table.yaml"]
    refused(fedpart("new", "tabel", "other"), "There is no starting folder 'tabel': did you mean 'table'")
    assert not Path("other").exists()


def test_a_flower_app_is_short():
    done = fedpart("new", "flower", "my app")
    assert (
        done.exit_code == 0
        and "cd 'my app'\n  FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run ." in done.output
    )
    assert sorted(file.name for file in Path("my app").iterdir()) == [
        *("client.py", "data.py", "model.py", "pyproject.toml", "server.py")
    ]
    lines = sum(len(file.read_text().splitlines()) for file in Path("my app").iterdir())
    assert lines <= 120
    assert f"{lines} lines in" in (ROOT / "docs" / "guides" / "flower.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({path.name for path in TEMPLATES.iterdir()} - {"flower"}))
def test_each_runs(kind, monkeypatch):
    Path("start").mkdir()  # an empty folder will do
    done = fedpart("new", kind, "start")
    assert done.exit_code == 0 and f"cd start\n  fedpart run {kind}.yaml" in done.output
    monkeypatch.chdir("start")
    succeeds("run", f"{kind}.yaml", "--set", "rounds=2", "evaluate_every=2", "--out", "run")
    assert read_summary("run")["rounds"] == 2
    new = {"table": "people.csv"}.get(kind)
    if new is not None:
        succeeds("predict", "run", new, "--out", "scored.csv")
        with open("scored.csv", newline="") as opened:
            assert {row["predicted"] for row in csv.DictReader(opened)} <= {"yes", "no"}


@pytest.mark.slow
def test_the_flower_app_runs():
    fedpart("new", "flower", "app")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FLOWER], cwd="app", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "'accuracy'" in done.stdout and "affine.angle_max [deg]" in done.stdout


def code_of(kind, name):
    code = {"__name__": name}
    exec((TEMPLATES / kind / f"{name}.py.in").read_text(), code)
    return code


SIGNALS, WORDS = np.ones((30, 2, 8), np.float32), np.array(["low", "high", "mid"] * 10)
BAD_SIGNALS = [
    ({"x": SIGNALS, "labels": WORDS}, "lacks the arrays signals and labels"),
    (
        {"signals": SIGNALS[:, 0], "labels": WORDS},
        r"signals \[30, 8\] of float32 and labels \[30\]; bring them to",
    ),
    ({"signals": SIGNALS, "labels": WORDS[1:]}, r"labels \[29\]; bring them to"),
    ({"signals": SIGNALS[1:], "labels": WORDS}, r"signals \[29, 2, 8\]"),
    ({"signals": SIGNALS.astype(str), "labels": WORDS}, "of <U.*real numbers"),
    ({"signals": SIGNALS, "labels": np.linspace(0, 1, 30)}, "are float64; make them whole numbers or words"),
]


@pytest.mark.parametrize(("arrays", "told"), BAD_SIGNALS)
def test_signals_that_do_not_fit_are_told(arrays, told):
    np.savez("mine.npz", **arrays)
    with pytest.raises(ValueError, match=told):
        code_of("signals", "signals")["load_signals"]("mine.npz")


@pytest.mark.parametrize("labels", [WORDS, np.array([7, 1, 3] * 10)])
def test_signals_are_taken_as_they_are_with_classes_that_are_there(labels):
    np.savez("mine.npz", signals=SIGNALS * np.arange(30)[:, None, None], labels=labels)
    splits = code_of("signals", "signals")["load_signals"]("mine.npz")
    assert splits.num_classes == 3 and [*splits.classes] == [*map(str, sorted({*labels.tolist()}))]
    parts = splits.train, splits.validation, splits.test
    assert [*map(len, parts)] == [20, 5, 5]
    rows = [int(row) for part in parts for row in part.inputs[:, 0, 0]]
    assert sorted(rows) == [*range(30)]
    given = [splits.classes[target] for part in parts for target in part.targets]
    assert given == [str(labels[row]) for row in rows]


def test_a_text_that_is_missing_has_no_words():
    pandas.DataFrame({"text": ["a b", None, "a"] * 10, "label": ["x", "y", "x"] * 10}).to_parquet("t.parquet")
    code = code_of("text", "texts")
    splits = code["load_texts"]("t.parquet")
    of_none = splits.train.inputs[splits.train.targets == 1]
    assert len(of_none) and not of_none.any() and splits.train.inputs.any()
    assert not splits.preprocessing.inputs([None]).any()
