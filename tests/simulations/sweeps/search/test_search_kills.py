"""What a kill may leave half done, and what a run without a result does: nothing here is trained."""

import json
import shutil
from pathlib import Path

import pytest
from test_search import run, searched

from simulations.folders.resolved import held
from simulations.sweeps.parallel import Pruned
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
