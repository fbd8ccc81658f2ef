"""python -m benchmarks.card.queue: which runs are made, how they end, and what is carried; on a CPU."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_runs import write_run

import benchmarks.card.queue as queue
from benchmarks.card.queue import FILE, PIECE, make, pack, runs_of, unpack
from simulations.config.load import read_table, table_file
from simulations.errors import ConfigError, RunError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def written(tmp_path):
    """A queue of one table with a short and a long row; more keys of its one entry."""

    def write(rounds=3, **entry):
        table = {
            "title": "Toys",
            "config": str(ROOT / "simulations" / "configs" / "quickstart.yaml"),
            "seeds": [0, 1],
            "set": {"beside": None, "engine": "local", "evaluate_every": 1},
            "columns": {"test [%]": "test_accuracy"},
            "rows": {"short": {"set": {"rounds": 3}}, "long": {"set": {"rounds": rounds}}},
        }
        (tmp_path / "toys.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
        entry = {"table": str(tmp_path / "toys.yaml"), "minutes": 1} | entry
        (tmp_path / "queue.yaml").write_text(yaml.safe_dump([entry]))
        return tmp_path / "queue.yaml"

    return write


def runs(file, **more):
    where = file.parent / "out", file.parent / "records"
    return list(runs_of(file, *where, ["device=cpu"], "cpu", **more))


def names(found):
    return [(run.of["row"], run.of["seed"]) for run in found]


class Pool:
    """In place of processes: a run at a time is asked for and ends; ``fails`` is a row that fails."""

    def __init__(self, monkeypatch, fails=None):
        self.fails, self.made = fails, []
        monkeypatch.setattr(queue, "run_in_processes", self)

    def __call__(self, take, jobs, ended, say):
        while (cell := take([])) is not None:
            self.made.append(cell.name)
            if self.fails is not None and self.fails in cell.name:
                ended(cell, RunError("Out of memory."), "")
            else:
                write_run(cell.folder, cell.config, [0.5] * cell.config.rounds)
                ended(cell, None, "")


def test_runs_come_in_the_files_order_a_seed_after_the_other_and_what_is_recorded_is_left_out(
    written, monkeypatch
):
    file = written()
    assert names(runs(file)) == [("short", 0), ("long", 0), ("short", 1), ("long", 1)]
    assert names(runs(written(rows=["long"], seeds=[1]))) == [("long", 1)]
    Pool(monkeypatch)
    make(runs(file), file.parent / "records", 1, 3600)
    assert names(runs(written())) == [("short", 0), ("long", 0), ("short", 1)]
    assert not runs(file, tables=["others"])


def test_a_run_is_begun_where_it_fits_and_else_the_first_which_goes_on_later(written, monkeypatch):
    pool = Pool(monkeypatch)
    first, *rest = found = runs(written())
    for run, minutes in zip(found, (50, 2, 50, 3), strict=True):
        run.minutes = minutes
    make(list(found), Path(written().parent / "records"), 1, 600)
    assert pool.made[:2] == [rest[0].cell.name, rest[2].cell.name]  # the shorter ones
    assert pool.made[2:] == [first.cell.name, rest[1].cell.name]  # rather than nothing


def test_a_record_of_a_row_tells_how_long_it_takes_on_this_machine(written, monkeypatch):
    file = written(minutes=7)
    Pool(monkeypatch)
    seconds = {"here": 30.0, "another": 6000.0}
    for seed, machine in enumerate(seconds):
        monkeypatch.setattr("simulations.results.records.machine", lambda device, name=machine: name)
        run = next(run for run in runs(file) if run.of == {**run.of, "row": "short", "seed": seed})
        write_run(run.cell.folder, run.cell.config, [0.5] * 3, seconds=seconds[machine])
        queue.write_record(file.parent / "records", run.cell, run.of)
    monkeypatch.setattr(queue, "machine", lambda device: "here")
    longer = written(minutes=7, seeds=[2])
    assert [run.minutes for run in runs(longer)] == [0.5, 7]


def test_a_run_that_fails_is_left_and_says_why(written, monkeypatch, capsys):
    Pool(monkeypatch, fails="long")
    found = runs(written())
    make(found, written().parent / "records", 1, 3600)
    assert names(found) == [("long", 0), ("long", 1)]
    assert [run.told for run in found] == ["Out of memory."] * 2
    assert "failed: toys: long, seed 0: Out of memory." in capsys.readouterr().out


def test_pieces_bring_records_and_unfinished_runs_to_another_machine(written, tmp_path, monkeypatch):
    file, pieces = written(rounds=40), tmp_path / "pieces"
    found, records = runs(file), tmp_path / "records"
    for run, size in zip(found, (100, 30, 5, 0), strict=True):
        write_run(run.cell.folder, run.cell.config, [0.5] * run.length, finished=False)
        (run.cell.folder / "checkpoint.pt").write_bytes(bytes(range(256)) * 4 * size)
    write_run(found[3].cell.folder, found[3].cell.config, [0.5] * found[3].length)
    queue.write_record(records, found[3].cell, found[3].of)
    monkeypatch.setattr(queue, "PIECE", 1000)
    monkeypatch.setattr(queue, "ROOM", 60)
    pieces.mkdir()
    (pieces / "queue.999").write_text("of an earlier call")
    said = pack(pieces, tmp_path / "out", records, found[:3])
    assert [text for text in said if found[0].cell.name in text and "begins anew" in text]
    assert all(0 < file.stat().st_size <= 1000 for file in pieces.iterdir())
    there = tmp_path / "there"
    unpack(pieces, there / "out", there / "records")
    assert [path.name for path in (there / "records").iterdir()] == ["toys--long--seed1.json"]
    for run in found[1:3]:
        folder = there / "out" / run.cell.folder.relative_to(tmp_path / "out")
        for name in ("checkpoint.pt", "metrics.jsonl", "config.yaml"):
            assert (folder / name).read_bytes() == (run.cell.folder / name).read_bytes()
    assert not (there / "out" / found[0].cell.folder.relative_to(tmp_path / "out")).exists()


def test_the_queue_names_tables_rows_and_scales_that_there_are(tmp_path):
    found = list(runs_of(FILE, tmp_path, tmp_path, ["device=cuda"], "cpu"))
    assert len({str(run.of) for run in found}) == len(found)
    assert found[0].of["table"] == "cifar10_1250" and found[0].of["row"].startswith("RotCIFAR-10")
    assert PIECE <= 16 << 20
    for name in {run.of["table"] for run in found}:  # the time to a result stands beside it
        assert "seconds" in read_table(table_file(name)).columns.values(), name


def test_a_row_that_is_not_there_is_named(written):
    with pytest.raises(ConfigError, match="the table toys has no row 'longer'"):
        runs(written(rows=["longer"]))


def run_queue(file, folder, minutes):
    arguments = {
        "minutes": minutes,
        "file": file,
        "device": "cpu",
        "jobs": 2,
        "pieces": file.parent / "pieces",
    }
    arguments |= {"out": folder / "out", "records": folder / "records"}
    options = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in arguments.items())
    command = [sys.executable, "-m", "benchmarks.card.queue", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.slow
def test_a_run_without_end_is_stopped_in_time_and_goes_on_elsewhere(written, tmp_path):
    file, rounds = written(rounds=10**6), [0]
    for machine in ("one", "another"):
        metrics = tmp_path / machine / "out" / "toys" / "long" / "seed0" / "metrics.jsonl"
        for minutes in (0.3, 0.6, 1.2):  # a busy machine takes half a minute to begin
            assert "left: toys: long, seed 0" in run_queue(file, tmp_path / machine, minutes)
            lines = metrics.read_text().splitlines() if metrics.exists() else []
            if len(lines) > rounds[-1]:
                break
        assert [json.loads(line)["round"] for line in lines] == list(range(1, len(lines) + 1))
        rounds.append(len(lines))
    assert 0 < rounds[1] < rounds[2]


@pytest.mark.slow
def test_what_it_imports_is_told_in_the_guide():
    code = "import benchmarks.card.queue, simulations.running.run, sys; print({*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"flwr", "ray", "optuna", "typer", "torchvision", "matplotlib", "pandas"} & set(
        eval(done.stdout)
    )
