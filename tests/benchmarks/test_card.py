"""python -m benchmarks.card.rounds: the script for a card, on a CPU."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.card.rounds import NAMES, QUICK, SMALL, WAYS, distance

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks.card.rounds", "--device", "cpu", "--quick", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_every_workload_has_its_rows_and_what_is_missing_is_told():
    lines = run()
    rows = [line.split() for line in lines if line.startswith(NAMES)]
    ways = {(row[0], " ".join(row[1:3]), row[3]) for row in rows if row[1] != "pfl"}
    kinds = ["bare loop", *(f"fedpart {way}" for way in ("auto", *WAYS))]
    assert ways == {(name, kind, how) for name in NAMES for kind in kinds for how in ("fp32", "bf16")}
    assert {row[0] for row in rows if row[1] == "pfl"} == {"W1", "W2", "P1"}
    timed = [row for row in rows if row[1] != "pfl"]
    assert all(float(row[4]) > 0 for row in timed), lines
    assert "torch" in lines[0]


def test_without_time_nothing_is_begun():
    lines = run("--budget", "0", "--workload", "W1")
    assert sum(line.endswith("no time") for line in lines) == 11


def test_it_imports_torch_numpy_and_fedpart_alone():
    code = "import benchmarks.card.rounds, sys; print({name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"flwr", "ray", "typer", "rich", "pydantic", "simulations", "yaml"} & set(eval(done.stdout))


def test_executions_agree_with_the_loop():
    far = {way: distance(replace(SMALL, **{**QUICK, "cohort": 2}), way, "cpu")[0] for way in WAYS}
    assert far.pop("loop") == 0.0 and max(far.values()) < 1e-3
