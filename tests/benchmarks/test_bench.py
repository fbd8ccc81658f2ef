"""fedpart bench: rows, refusals, and the processes behind them."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from command_line import fedpart, refused
from flwr.app import Context, RecordDict
from inprocess_grid import InProcessGrid
from typer.testing import CliRunner

from benchmarks.rounds import bench, flower_fedavg, ours
from benchmarks.rounds.bench import Timings, rows
from benchmarks.rounds.engines import ENGINES, engine_process, left_out, peak_memory
from benchmarks.rounds.workloads import WORKLOADS, Workload
from fedpart import Federation
from fedpart.engines import LocalEngine
from simulations.errors import RunError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_a_folder_of_its_own")]

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


def timed(*arguments):
    return CliRunner().invoke(bench.app, arguments)


def test_rows_of_a_tiny_workload(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "tiny", TINY)
    engines = "bare,local,flower,pfl"
    result = timed("--workload", "tiny", "--engine", engines, "--rounds", "2", "--json", "rows")
    assert result.exit_code == 0, result.output
    assert "tiny without flower: the stock Flower app is plain FedAvg with Adam" in result.stdout
    assert "tiny without pfl: pfl has no partitioned training." in result.stdout
    assert "tiny: medians of 2 rounds" in result.stdout
    bare, local = map(json.loads, Path("rows").read_text().splitlines())
    assert [bare["engine"], local["engine"]] == ["bare", "local"]
    for row in (bare, local):
        assert row.keys() == rows(TINY, {"bare": Timings(3.0, [0.25], flops=[1])})[0].keys()
        assert (row["workload"], row["rounds"], row["torch"]) == ("tiny", 2, torch.__version__)
        assert 0 < row["seconds_per_round"] < row["first_round_seconds"]
        assert row["clients_per_second"] == pytest.approx(3 / row["seconds_per_round"], rel=1e-3)
        assert row["machine"].endswith(" cores")
        assert row["peer"] is None
    assert bare["ratio_to_bare"] == 1
    ratio = local["seconds_per_round"] / bare["seconds_per_round"]
    assert local["ratio_to_bare"] == pytest.approx(ratio, rel=1e-3)
    assert local["gflop_per_second"] == pytest.approx(bare["gflop_per_second"] / ratio, rel=2e-3)


def test_row_arithmetic():
    two = Timings(5.0, [0.5, 0.25, 1.0], peer="theirs 1.0")
    bare = Timings(3.0, [0.25, 0.25], flops=[1000, 3000])
    first, second = rows(WORKLOADS["W1"], {"ray": two, "bare": bare})
    medians = [first[key] for key in ("seconds_per_round", "ratio_to_bare", "clients_per_second")]
    assert medians == [0.5, 2.0, 20.0]
    assert first["spread"] == 0.75
    assert first["gflop_per_second"] == pytest.approx(2000 / 0.5 / 1e9)
    assert (first["peer"], second["peer"]) == ("theirs 1.0", None)
    assert rows(WORKLOADS["W1"], {"ray": two})[0]["ratio_to_bare"] is None


def test_bad_input_is_one_sentence():
    refused(fedpart("bench", "--workload", "W1"), "benchmarks.rounds.bench")
    assert "0 is not in the range x>=1" in timed("--rounds", "0").output
    refused(timed("--workload", "W1,W9"), "There is no workload 'W9'", "P1, W1, W2, W3, W4")
    refused(timed("--engine", "locl"), "There is no engine 'locl': did you mean 'local'?", "flower")
    refused(timed("--engine", ","), "There is no engine ','")
    refused(timed("--pfl-python", "nowhere/python"), "There is no Python at nowhere/python")
    refused(timed("--json", "nowhere/rows"), "nowhere/rows cannot be written (No such", "--json")
    Path("folder").mkdir()
    refused(timed("--json", "folder"), "folder cannot be written (it is no regular file)")


def test_what_no_engine_can_run_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(bench, "engine_process", pytest.fail)
    asked = ("--workload", "W3", "--engine", "flower,pfl", "--json", "rows")
    for python in ((), ("--pfl-python", sys.executable)):
        result = timed(*asked, *python)
        refused(result, "Nothing was timed: none of these engines runs these workloads here.")
        assert "W3 without flower: " in result.stdout and "W3 without pfl: " in result.stdout
    assert not Path("rows").exists()


@pytest.mark.parametrize("failure", [RunError("No memory."), KeyboardInterrupt()], ids=["fails", "Ctrl-C"])
def test_rows_are_lost_only_to_new_ones(failure, monkeypatch):
    found = {"W1": rows(WORKLOADS["W1"], {"local": Timings(3.0, [0.25, 0.5])})}
    found |= {"W2": failure, "W3": failure}

    def measured(workload, *_):
        if isinstance(found[workload.name], BaseException):
            raise found[workload.name]
        return found[workload.name]

    monkeypatch.setattr(bench, "measure", measured)
    Path("real").write_text("earlier rows\n")
    Path("rows").symlink_to("real")
    assert timed("--workload", "W2,W1", "--json", "rows").exit_code
    assert Path("real").read_text() == "earlier rows\n"
    assert timed("--workload", "W1,W2", "--json", "rows").exit_code
    assert Path("real").read_text() == json.dumps(found["W1"][0]) + "\n"
    found["W2"] = rows(WORKLOADS["W2"], {"local": Timings(3.0, [0.5])})
    assert timed("--workload", "W1,W2,W3", "--json", "rows").exit_code
    workloads = [json.loads(line)["workload"] for line in Path("real").read_text().splitlines()]
    assert workloads == ["W1", "W2"]
    assert sorted(path.name for path in Path().iterdir()) == ["real", "rows"]


def test_a_full_disk_leaves_the_earlier_rows(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bench, "measure", lambda *_: rows(WORKLOADS["W1"], {"local": Timings(3.0, [1.0])}))
    monkeypatch.setattr(os, "fsync", full)
    Path("rows").write_text("earlier rows\n")
    result = timed("--json", "rows")
    refused(result, "rows cannot be written (No space left on device); choose another with --json.")
    assert Path("rows").read_text() == "earlier rows\n"


def test_which_engines_a_workload_leaves_out():
    python = Path(sys.executable)
    assert not any(left_out(ENGINES[name], WORKLOADS["W1"], python) for name in ENGINES)
    assert "augmentation" in (left_out(ENGINES["flower"], WORKLOADS["W2"], python) or "")
    assert left_out(ENGINES["pfl"], WORKLOADS["W2"], python) is None
    assert "--pfl-python" in (left_out(ENGINES["pfl"], WORKLOADS["W2"], None) or "")
    assert "partitioned" in (left_out(ENGINES["pfl"], WORKLOADS["W3"], python) or "")


def test_a_python_without_pfl_leaves_pfl_out(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "tiny", replace(TINY, chunks=(1.0,)))
    Path("pfl.py").write_text("raise ModuleNotFoundError(\"No module named 'pfl'\")")
    monkeypatch.setenv("PYTHONPATH", str(Path().resolve()), prepend=os.pathsep)
    Path("rows").write_text("earlier rows\n")
    asked = ("--workload", "tiny", "--engine", "pfl", "--json", "rows")
    result = timed(*asked, "--pfl-python", sys.executable)
    refused(result, "Nothing was timed: none of these engines runs these workloads here.")
    advice = "make pfl's environment as docs/guides/benchmarks.md says."
    advice = f"cannot run it (No module named 'pfl'); {advice}"
    assert f"tiny without pfl: {sys.executable} {advice}" in result.stdout
    assert Path("rows").read_text() == "earlier rows\n"


def test_flower_tells_its_version():
    with engine_process("flower", ENGINES["flower"].module) as process:
        answer = process.ask({"workload": asdict(WORKLOADS["W1"]), "cohorts": []})
    assert answer == {"peer": f"flwr {version('flwr')}, ray {version('ray')}"}


def test_an_engine_that_fails_is_quoted(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "tiny", replace(TINY, model="no_such_network"))
    with (
        pytest.raises(RunError, match=r"^The engine bare ended with status 1: KeyError: 'no_such_network'"),
        engine_process("bare", ["benchmarks.rounds.bare"]) as process,
    ):
        process.ask({"workload": asdict(WORKLOADS["tiny"]), "cohorts": []})


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
    grid = InProcessGrid(ours.load(), TINY.clients, ours.run_config(TINY))
    flower = ours.FlowerRounds(federation, grid)
    local = LocalEngine(expected, ours.make_shards(TINY))
    for _ in range(2):
        flower.run_round()
        local.run_round()
    assert federation.w.equal(expected.w)
    assert federation.psi.equal(expected.psi)


def test_the_stock_flower_app_trains_a_cohort_a_round(monkeypatch):
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


def test_peak_memory_counts_children():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    child = "held = bytearray(b'x' * 64_000_000); print('ready', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, child], **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        with peak_memory(process.pid, 0.01) as megabytes:
            pass
        process.stdin.close()
    told = Path("/proc/self/smaps_rollup").exists()
    assert 64 < megabytes() < 128 if told else megabytes() is None
