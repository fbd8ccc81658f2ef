"""Files of a run that are lost, or put back from another moment, never pass in silence."""

import os
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
from simulations.folders.run_directory import RunDirectory, saved_config
from simulations.results.report.page import write_report
from simulations.running.export import export_run
from simulations.running.run import run_experiment
from simulations.sweeps.search.search import run_search

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


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", tiny()).close()
    rows: list[refusals.Row] = []
    kinds = {
        "pipe": os.mkfifo,
        "folder": os.mkdir,
        "link to nothing": lambda file: file.symlink_to("nothing"),
        "device": lambda file: file.symlink_to("/dev/zero"),
    }
    for name in ("metrics.jsonl", "summary.json", "checkpoint.pt", "state.safetensors", "releases.jsonl"):
        for kind, make in kinds.items():
            folder = tmp_path / f"{name} {kind}"
            shutil.copytree(tmp_path / "run", folder)
            make(folder / name)
            for way, call in {"show": show, "load": fedpart.load, "resume": resume}.items():
                says = f"{name} is no regular file but .*{kind}"
                rows.append((f"{way}, {name}, a {kind}", partial(call, folder), ConfigError, says))
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


@pytest.mark.slow
def test_a_search_whose_journal_tells_another_story(tmp_path: Path) -> None:
    space = {"optimiser_psi.learning_rate": [0.1, 0.5]}
    config = tiny_training(search={"space": space, "trials": 2, "sampler": "random"})
    run_search(config, tmp_path / "run")
    journal, says = (tmp_path / "run" / "study.log").read_bytes(), "cannot be read .*put it back"
    first = run_search(config, tmp_path / "run").rows[0]
    value, score = (f"{number!r}".encode() for number in (first.values[next(iter(space))], first.objective))
    rows: list[refusals.Row] = []
    for what, content, told in (
        ("another value", journal.replace(value, b"0.25"), "holds a run with other settings"),
        ("another score", journal.replace(score, b"0.125"), "does not tell what is in .*000; put both back"),
        ("no JSON", journal.replace(b"{", b"[", 1), says),
        ("no text", b"\xb4" + journal, says),
        ("another key", journal.replace(b"learning_rate", b"learning_rbte"), says),
    ):
        assert content != journal
        folder = tmp_path / what
        shutil.copytree(tmp_path / "run", folder)
        (folder / "study.log").write_bytes(content)
        rows.append((what, partial(run_search, config, folder), ConfigError, told))
    outcome = tmp_path / "run" / "search.json"
    outcome.write_bytes(outcome.read_bytes().replace(score, b"0.125"))
    rows.append(
        ("its outcome", partial(write_report, tmp_path / "run"), ConfigError, "go on with .*--resume")
    )
    refusals.check(rows)
