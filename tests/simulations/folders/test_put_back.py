"""Files of a run that are lost, or put back from another moment, never pass in silence."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import refusals
from tiny import tiny, tiny_training

import fedpart
from fedpart.training.files import completed
from simulations.cli.commands import show
from simulations.config.load import ConfigError
from simulations.folders.run_directory import saved_config
from simulations.report.page import write_report
from simulations.running.export import export_run
from simulations.running.run import run_experiment

PRIVATE: dict[str, Any] = {
    "weighting": "uniform",
    "clip": {"weights": 1.0, "psi": 1.0},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-3},
    "rounds": 2,
    "checkpoint_every": 1,
}


def resume(folder: Path, **changes: Any) -> dict[str, Any]:
    return run_experiment(saved_config(folder).model_copy(update=changes), folder, resume=True)


def test_a_lost_name_turns_no_check_off(tmp_path: Path) -> None:
    run_experiment(tiny_training(), tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    file.write_bytes(file.read_bytes().partition(b"\n")[2])
    ways = {
        "load": fedpart.load,
        "show": show,
        "report": write_report,
        "export": lambda run: export_run(run, "safetensors"),
        "resume": resume,
    }
    rows = []
    for left in ("summary.json", "metrics.jsonl"):
        shutil.copytree(tmp_path / "run", tmp_path / left)
        (tmp_path / left / ({"summary.json", "metrics.jsonl"} - {left}).pop()).unlink()
        says = f"lost its first line, which names the run that {left} has seals of; .*weights are whole"
        rows += [
            (f"{way}, {left}", partial(call, tmp_path / left), ConfigError, says)
            for way, call in ways.items()
            if (way, left) != ("report", "summary.json")
        ]
    refusals.check(rows)


def test_a_damaged_checkpoint_tells_no_round(tmp_path: Path) -> None:
    run_experiment(tiny_training(), tmp_path)
    (tmp_path / "checkpoint.previous.pt").unlink(missing_ok=True)
    file = tmp_path / "checkpoint.pt"
    assert completed(file) == 30
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert completed(file) == 0


def test_releases_that_only_a_summary_tells_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_experiment(tiny(**PRIVATE), tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    for name in ("metrics.jsonl", "releases.jsonl", "checkpoint.pt", "checkpoint.previous.pt"):
        (tmp_path / "run" / name).unlink()
    says = r"summary\.json tells of more releases than .*releases\.jsonl counts; put that file back"
    refusals.check([("resume", partial(resume, tmp_path / "run", rounds=3), ConfigError, says)])
