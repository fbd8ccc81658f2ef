"""python -m benchmarks.rounds.bench: rows, refusals, and the engines behind them, on a CPU."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import pytest
from command_line import fedpart, refused
from flower_rounds import load, rounds_over, run_config
from flwr.app import Context, RecordDict
from inprocess_grid import InProcessGrid

from benchmarks.rounds import bench, ours
from benchmarks.rounds.bench import QUICK, SMALL, USUAL, WAYS, Contender, contenders, distance
from benchmarks.rounds.workloads import WORKLOADS, Workload
from fedpart import Federation
from fedpart.engines import LocalEngine

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TINY = Workload(
    "tiny",
    model="digits_cnn",
    clients=6,
    examples=4,
    cohort=3,
    samples=2,
    affine=0.1,
    dropout=0.1,
    chunks=(0.5, 0.5),
    batch_size=3,
)


@pytest.fixture
def said(monkeypatch, capsys):
    """What the command prints, in this process."""

    def run(*arguments, status=0):
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        ended = None
        try:
            bench.main()
        except SystemExit as error:
            ended = error.code
        assert (ended or 0) == status
        return capsys.readouterr()

    return run


def test_every_workload_has_its_rows_and_what_is_missing_is_told(said, monkeypatch):
    monkeypatch.setattr(bench, "WARM_UP", 1)
    lines = said("--quick", "--budget", "3000").out.splitlines()  # a busy machine takes longer than usual
    rows = [line.split() for line in lines if line.startswith(tuple(WORKLOADS))]
    timed = [row for row in rows if row[1] != "pfl"]
    kinds = ("bare", "auto", *WAYS)
    both = ("fp32", "bf16")
    assert {tuple(row[:3]) for row in timed} == {*product(WORKLOADS, kinds, both)}
    assert {row[0] for row in rows if row[1] == "pfl"} == {"W1", "W2", "P1"}
    assert all(float(row[3]) > 0 for row in timed), lines
    assert "torch" in lines[0]


def test_without_time_nothing_is_begun():
    command = [sys.executable, "-m", "benchmarks.rounds.bench"]
    command += ["--quick", "--budget", "0", "--workload", "W1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert sum(line.endswith("no time") for line in lines) == 11


def test_names_that_there_are_none_of(said):
    refused(fedpart("bench", "--workload", "W1"), "benchmarks.rounds.bench")
    assert "there is no 'W9', but W1, W2, W3, W4, P1" in said("--workload", "W1,W9", status=2).err
    assert "there is no 'locl', but bare, auto" in said("--engine", "locl", status=2).err


def test_it_imports_torch_numpy_and_fedpart_alone():
    code = "import benchmarks.rounds.bench, sys; print({name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"flwr", "ray", "typer", "rich", "pydantic", "simulations", "yaml"} & set(eval(done.stdout))


def test_executions_agree_with_the_loop():
    far = {way: distance(replace(SMALL, **{**QUICK, "cohort": 2}), way, "cpu")[0] for way in WAYS}
    assert far.pop("loop") == 0.0 and max(far.values()) < 1e-3


def test_a_row_has_the_rounds_after_the_warm_up():
    row = Contender(WORKLOADS["W1"], "bare", "fp32", [9.0, 8.0, 0.5, 0.25, 1.0], peak=3.0)
    median, spread, least, peak, note = row.row()
    assert (median, least, peak, note) == (0.5, 0.25, 3.0, "") and spread == pytest.approx(0.75, abs=0.5)


def test_which_engines_a_workload_leaves_out():
    engines = (*USUAL[0], "flower")
    assert {"flower", "pfl"} <= {row.engine for row in contenders(WORKLOADS["W1"], engines)}
    assert {row.engine for row in contenders(WORKLOADS["W2"], engines)} == {"bare", "auto", "pfl"}
    assert {row.engine for row in contenders(WORKLOADS["W3"], engines)} == {"bare", "auto"}
    assert "flower" not in {row.engine for row in contenders(WORKLOADS["P1"], engines)}


def test_workloads_survive_the_passage_to_another_process():
    for workload in WORKLOADS.values():
        assert Workload.from_dict(json.loads(json.dumps(asdict(workload)))) == workload
    (x, y), (again, _), (other, _) = TINY.shard(2), TINY.shard(2), TINY.shard(3)
    assert x.shape == (4, 1, 28, 28)
    assert y.shape == (4,)
    assert x.equal(again)
    assert not x.equal(other)


def test_flower_engine_steps_as_the_local_one():
    federation, expected = (Federation(ours.make_protocol(TINY)) for _ in range(2))
    grid = InProcessGrid(load(), TINY.clients, run_config(TINY))
    run_round = rounds_over(grid, federation)
    local = LocalEngine(expected, ours.make_shards(TINY))
    for _ in range(2):
        run_round()
        local.run_round()
    assert federation.w.equal(expected.w)
    assert federation.psi.equal(expected.psi)


def test_the_stock_flower_app_trains_a_cohort_a_round(monkeypatch):
    from benchmarks.rounds import flower_fedavg  # of all of Flower's simulation, which takes a second

    workload = replace(WORKLOADS["W1"], clients=12, cohort=3)
    monkeypatch.setenv("FEDPART_BENCH_WORKLOAD", json.dumps(asdict(workload)))
    grid, ends = InProcessGrid(flower_fedavg.client_app, workload.clients), []
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    flower_fedavg.make_server_app(2, ends)(grid, context)
    assert len(grid.sent) == 2 * 3
    assert ends == sorted(ends)
    assert len(ends) == 2
    first, second = (message.content["arrays"].to_numpy_ndarrays() for message in grid.sent[2:4])
    assert [array.size for array in first] == [500, 20, 25_000, 50, 1_225_000, 500, 25_000, 50, 500, 10]
    assert not (first[0] == second[0]).all()
