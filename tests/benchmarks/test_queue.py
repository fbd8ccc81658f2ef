"""python -m benchmarks.card.queue: which runs are made, how they end, and what is carried; on a CPU."""

import itertools
import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from fake_runs import write_run

import benchmarks.card.queue as queue
from benchmarks.card.queue import FILE
from simulations.config.load import read_table, table_file
from simulations.errors import ConfigError, RunError
from simulations.results.records import read_records
from simulations.sweeps.cell_runner import CellRunner

ROOT = Path(__file__).parents[2]


@pytest.fixture
def written(tmp_path):
    """A queue of one table with a short and a long row; more keys of its one entry."""

    def write(rounds=3, row="long", **entry):
        table = {
            "title": "Toys",
            "config": str(ROOT / "simulations" / "configs" / "quickstart.yaml"),
            "seeds": [0, 1],
            "set": {"beside": None, "engine": "local", "evaluate_every": 1},
            "columns": {"test [%]": "test_accuracy"},
            "rows": {"short": {"set": {"rounds": 3}}, row: {"set": {"rounds": rounds}}},
        }
        (tmp_path / "toys.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
        entry = {"table": str(tmp_path / "toys.yaml")} | entry
        (tmp_path / "queue.yaml").write_text(yaml.safe_dump([entry]))
        return tmp_path / "queue.yaml"

    return write


def main(monkeypatch, file, *more, device="cpu"):
    """Makes the runs of a queue in this process, if there is anything to make them with."""
    arguments = {"minutes": 60, "file": file, "device": device, "jobs": 1}
    arguments |= {"out": file.parent / "out", "records": file.parent / "records"}
    options = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in arguments.items())
    monkeypatch.setattr(sys, "argv", ["queue", *options, *more])
    queue.main()


@pytest.fixture
def made(monkeypatch):
    """Names of the runs in their order, which end at once; those of a row called ``fails`` fail."""
    names = []

    def make(config, folder, **options):
        names.append(f"{folder.parent.name} {config.seed}")
        if folder.parent.name == "fails":
            raise RunError("There is no memory.")
        write_run(folder, config, [0.5] * config.rounds)

    monkeypatch.setattr(queue, "CellRunner", partial(CellRunner, run=make))
    return names


def test_runs_come_in_the_files_order_and_leave_records_that_stand_for_them(
    written, made, monkeypatch, capsys
):
    file = written(rows=["long"])
    main(monkeypatch, file)
    assert made == ["long 0", "long 1"]
    main(monkeypatch, written())
    assert made[2:] == ["short 0", "short 1"]
    shutil.rmtree(file.parent / "out")  # records outlast it
    capsys.readouterr()
    main(monkeypatch, file)
    assert not capsys.readouterr().out.strip(), "nothing is missing"
    assert len(made) == 4 and len(list((file.parent / "records").iterdir())) == 4
    (record, *_) = read_records("toys", None, file.parent / "records")["long"]
    assert (record["seed"], record["length"], record["summary"]["method"]) == (0, 3, "partitioned")


def test_of_the_tables_that_are_named_alone(written, made, monkeypatch):
    main(monkeypatch, written(), "--table", "others")
    assert not made
    main(monkeypatch, written(), "--table", "toys")
    assert len(made) == 4


def test_a_run_that_fails_costs_no_other_and_says_why(written, made, monkeypatch, capsys):
    file = written(row="fails")
    main(monkeypatch, file)
    assert made == ["short 0", "fails 0", "short 1", "fails 1"]
    assert "fails, seed 0: There is no memory." in capsys.readouterr().out
    main(monkeypatch, file)
    assert made[4:] == ["fails 0", "fails 1"]


def test_the_queue_names_tables_rows_and_scales_that_there_are():
    entries = yaml.safe_load(FILE.read_text())
    assert entries[0]["table"] == "cifar10_1250" and entries[0]["rows"][0].startswith("RotCIFAR-10")
    for entry in entries:
        table = read_table(table_file(entry["table"]))
        assert {*entry.get("rows", ())} <= table.rows.keys() and entry.keys() <= {"table", "rows", "scale"}
        assert entry.get("scale") in (None, *table.scales)
        assert "seconds" in table.columns.values(), "the time to a result stands beside it"


def test_a_row_that_is_not_there_is_named(written, made, monkeypatch, capsys):
    main(monkeypatch, written(rows=["longer"]))
    assert "has no row 'longer'" in capsys.readouterr().out and not made


def test_a_key_that_is_none_is_named(written, made, monkeypatch):
    with pytest.raises(ConfigError, match="has table, scale and rows, not seeds"):
        main(monkeypatch, written(seeds=[1]))


def run_queue(file, folder, minutes):
    arguments = {"minutes": minutes, "file": file, "device": "cpu", "jobs": 2}
    arguments |= {"out": folder / "out", "records": folder / "records"}
    options = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in arguments.items())
    command = [sys.executable, "-m", "benchmarks.card.queue", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.slow
def test_a_run_without_end_is_stopped_in_time_and_goes_on_elsewhere(written, tmp_path):
    file, rounds = written(rounds=10**6), [0]
    for machine in ("one", "another"):
        if machine == "another":
            shutil.move(tmp_path / "one", tmp_path / machine)
        metrics = tmp_path / machine / "out" / "toys" / "long" / "seed0" / "metrics.jsonl"
        for minutes in (0.3, 0.6, 1.2):  # a busy machine takes half a minute to begin
            assert "The time is over: stopped by SIGINT after" in run_queue(file, tmp_path / machine, minutes)
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
