"""Folders to start from run as they are, and nothing of the user's is overwritten."""

import csv
import os
import subprocess
import sys
from pathlib import Path

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
