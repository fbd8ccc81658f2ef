"""Searches that are killed or stopped, in one process or several, and centralised ones."""

import io
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml
from command_line import succeeds
from rich.console import Console
from safetensors.torch import load_file
from test_search import begun, run, searched, trials_of
from tiny import tiny_training

from fedpart import AffineAugmentation
from simulations.config.load import TrainingConfig, load_config
from simulations.folders.resolved import held
from simulations.folders.run_directory import read_metrics
from simulations.running.recorder import Interrupted
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.parallel import Pruned
from simulations.sweeps.search.search import run_search
from simulations.sweeps.search.study import JOURNAL, Attempt, Study

PRUNED = "PRUNED"


def opened(folder, config):
    folder.mkdir(exist_ok=True)
    return Study(folder, config)


def attempt(study, trial, config, folder):
    return Attempt("a trial", config, folder / "trials" / str(trial.number), study, trial)


def wrote(attempt, losses):
    """The folder of a run after so many rounds."""
    attempt.folder.mkdir(parents=True)
    lines = [{"round": i, "val_nll": loss} for i, loss in enumerate(losses, start=1)]
    (attempt.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median"])
def test_a_kill_between_the_decision_to_stop_a_run_and_its_end_changes_nothing(pruner, tmp_path):
    config = searched(pruner=pruner, trials=12)
    study, stopped = opened(tmp_path, config), []
    for i in range(12):
        asked = attempt(study, study.ask(), config, tmp_path)
        for line in wrote(asked, [1.0 + i - 0.1 * n for n in range(6)]):
            if asked.stops(line):
                stopped.append((i, line["round"]))
                study = opened(tmp_path, config)  # killed before it was told
                (trial,) = study.unfinished()
                asked = attempt(study, trial, config, tmp_path)
                lines = (asked.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
                (asked.folder / "metrics.jsonl").write_text("".join(lines[: line["round"]]))
                assert asked.caught_up()
                asked.ended(Pruned())
                break
        else:
            assert not asked.caught_up()
            asked.ended(None)
    assert stopped
    assert [t.number for t in study.trials if t.state.name == PRUNED] == [i for i, _ in stopped]


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp"])
def test_whenever_it_is_killed_a_trial_has_all_its_values(sampler, tmp_path):
    config = searched(sampler=sampler)
    study = opened(tmp_path / "whole", config)
    for _ in range(3):
        study.ask()
    lines = (tmp_path / "whole" / JOURNAL).read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        shutil.rmtree(tmp_path / "killed", ignore_errors=True)
        (tmp_path / "killed").mkdir()
        (tmp_path / "killed" / JOURNAL).write_bytes(b"".join(lines[:kept]))
        for trial, whole in zip(opened(tmp_path / "killed", config).trials, study.trials, strict=False):
            assert trial.params == whole.params and len(whole.params) == 4


def test_a_run_whose_last_evaluation_is_not_finite_has_failed_whatever_it_had_before(tmp_path):
    config = searched()
    study = opened(tmp_path, config)
    asked = attempt(study, study.ask(), config, tmp_path)
    for line in wrote(asked, [0.1] * 5 + [None]):  # null: infinite
        assert not asked.stops(line)
    asked.ended(None)
    (trial,) = study.trials
    assert trial.state.name == "FAIL" and "no finite val_nll" in trial.user_attrs["error"]


def test_what_a_kill_or_a_full_disk_leaves_of_the_journal_is_put_right(tmp_path, monkeypatch):
    config, folder = searched(), tmp_path / "out"
    params = opened(folder, config).ask().params
    with (folder / JOURNAL).open("ab") as journal:
        journal.write(b'{"op_code":')
    monkeypatch.chdir(tmp_path)
    (folder / f"{JOURNAL}.lock").symlink_to(f"out/{JOURNAL}")  # as Optuna makes it in a relative folder
    for count in (1, 2):  # the second reads what the first has written
        study = opened(Path("out"), config)
        assert len(study.trials) == count and study.trials[0].params == params
        study.ask()


def test_one_process_searches_in_a_folder(tmp_path):
    config, out = searched(trials=1), tmp_path / "out"
    out.mkdir()
    with held(out), pytest.raises(FileExistsError, match="Another process is running"):
        run(config, out)


TRIALS = 5


class Stops(io.StringIO):
    """A screen whose reader presses Ctrl-C when a trial has ended."""

    def write(self, text):
        if "Trial " in text and "Trial " not in self.getvalue():
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def in_two(config, out, stream):
    return run_search(config, out, CellRunner(jobs=2, console=Console(file=stream, width=200)))


@pytest.mark.slow
def test_killed_stopped_and_continued_in_two_processes(tmp_path):
    """Values drawn at random follow from the number of a trial, and its run from them, whatever others do."""
    config, out = searched(sampler="random", pruner="asha", trials=TRIALS), tmp_path / "out"
    process = begun(config, out, "--jobs", "2")
    while not all((out / "trials" / name / "metrics.jsonl").exists() for name in ("000", "001")):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()  # its other processes write to the same pipe: they have ended
    with pytest.raises(Interrupted, match=r"SIGINT after [12] trial"):
        in_two(config, out, Stops())
    ended = {number for number, state, *_ in trials_of(out) if state.is_finished()}
    assert 0 < len(ended) <= 2
    screen = io.StringIO()
    found = in_two(config, out, screen)
    assert screen.getvalue().count("Trial ") == TRIALS - len(ended)

    expected = run(config, tmp_path / "one")
    assert [row.number for row in found.rows] == list(range(TRIALS))
    for row, alone in zip(found.rows, expected.rows, strict=True):
        mine, its = (
            read_metrics(folder / "trials" / f"{row.number:03d}") for folder in (out, tmp_path / "one")
        )
        assert row.values == alone.values and row.state in ("complete", "pruned")
        assert [line["round"] for line in mine] == list(range(1, len(mine) + 1))
        assert len(mine) == 6 or row.state == "pruned"
        for a, b in zip(mine, its, strict=False):
            assert (a["val_nll"], a["upload_bytes"]) == (b["val_nll"], b["upload_bytes"])
        assert row.cost.upload_bytes == sum(line["upload_bytes"] for line in mine)
        assert row.objective == (mine[-1]["val_nll"] if row.state == "complete" else None)
    assert found.spent.bytes == sum(row.cost.bytes for row in found.rows)


NAMES = AffineAugmentation.components["lila"]
DRAWN = {"data": "digits", "model": "digits_cnn", "model_options": {}, "iterations": 4, "evaluate_every": 2}
DRAWN |= {"method": "none", "method_options": {"none": {"augment": True}}}
DRAWN["hyperparameters"] = {"affine": {"family": "lila", "initial": {}}, "dropout": None}
SPACE = {f"hyperparameters.affine.initial.{name}": [0.0, 0.5] for name in NAMES}


def centralised(space=SPACE, trials=3, objective="val_accuracy", **changes):
    section = {"space": space, "trials": trials, "sampler": "random", "objective": objective}
    return tiny_training(**{**DRAWN, **changes, "search": section})


@pytest.mark.slow
def test_every_draw_is_kept_to_the_bit_and_a_longer_search_goes_on(tmp_path):
    file, out = tmp_path / "search.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(centralised(trials=1).resolved()))
    succeeds("search", file, "--out", out)
    first = out / "trials" / "000" / "state.safetensors"
    before = first.stat().st_mtime_ns
    found = run(centralised(trials=2), out)
    assert first.stat().st_mtime_ns == before
    for row in found.rows:
        folder = out / "trials" / f"{row.number:03d}"
        drawn = torch.tensor([row.values[f"hyperparameters.affine.initial.{name}"] for name in NAMES])
        assert torch.equal(load_file(folder / "state.safetensors")["psi/affine.range"], drawn)
        assert [line["iteration"] for line in read_metrics(folder)] == [2, 4]
    assert found.rows[0].values != found.rows[1].values
    assert found.spent.rounds == 2 * 4 and found.spent.bytes == 0
    best = load_config(out / "best.yaml", kind=TrainingConfig)
    drawn = {key.rpartition(".")[2]: value for key, value in found.best.values.items()}
    assert best.hyperparameters.affine.initial == drawn


def test_training_that_fails_is_a_failed_trial_and_the_search_goes_on(tmp_path):
    space = {"optimiser.learning_rate": {"choice": [0.001, 1e30]}}
    result = run(centralised(space=space, trials=3), tmp_path / "out")
    states = {row.values["optimiser.learning_rate"]: row.state for row in result.rows}
    assert states == {0.001: "complete", 1e30: "failed"}
