"""Folders that others have changed or put back, and runs on images of one's own."""

import io
import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import refusals
import torch
from command_line import fedpart as typed
from image_files import write_class_folders, zipped
from places import ROOT
from rich.console import Console
from safetensors.torch import load_file
from tiny import tiny, tiny_training

import fedpart
from simulations.cli.commands import show
from simulations.config.load import ConfigError
from simulations.folders.contents import run_name
from simulations.folders.run_directory import RunDirectory, read_summary, saved_config
from simulations.results.report.page import write_report
from simulations.results.terminal.progress import Progress
from simulations.running.export import export_run
from simulations.running.run import run_experiment
from simulations.sweeps.search.search import run_search

PRIVATE = {
    "weighting": "uniform",
    "clip": {"weights": 1.0, "psi": 1.0},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-3},
    "rounds": 2,
    "checkpoint_every": 1,
}


def resume(folder, **changes):
    return run_experiment(saved_config(folder).model_copy(update=changes), folder, resume=True)


def test_a_run_without_a_checkpoint_says_that_it_begins_anew(tmp_path):
    run_experiment(tiny(rounds=2), tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    said = Console(file=io.StringIO(), width=200)
    config = saved_config(tmp_path).model_copy(update={"rounds": 3})
    run_experiment(config, tmp_path, resume=True, progress=Progress(said))
    assert "has no checkpoint, so the run begins anew." in said.file.getvalue()


def test_a_lost_name_turns_no_check_off(tmp_path):
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


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    RunDirectory.create(tmp_path / "run", tiny()).close()
    rows = []
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


def test_a_run_under_way_moves_its_checkpoints_while_its_folder_is_read(tmp_path, monkeypatch):
    RunDirectory.create(tmp_path / "run", tiny()).close()
    (tmp_path / "run" / "checkpoint.previous.pt").touch()

    def moving(look):
        def looked(path):
            listed = [*look(path)]
            (tmp_path / "run" / "checkpoint.previous.pt").unlink(missing_ok=True)
            return listed

        return looked

    for look in ("scandir", "listdir"):
        monkeypatch.setattr(os, look, moving(getattr(os, look)))
    assert run_name(tmp_path / "run") is not None


def test_releases_that_only_a_summary_tells_of(tmp_path, monkeypatch):
    run_experiment(tiny(**PRIVATE), tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    for name in ("metrics.jsonl", "releases.jsonl", "checkpoint.pt", "checkpoint.previous.pt"):
        (tmp_path / "run" / name).unlink()
    says = r"summary\.json tells of more releases than .*releases\.jsonl counts; put that file back"
    refusals.check([("resume", partial(resume, tmp_path / "run", rounds=3), ConfigError, says)])


@pytest.mark.slow
def test_a_search_whose_journal_tells_another_story(tmp_path):
    space = {"optimiser_psi.learning_rate": [0.1, 0.5]}
    config = tiny_training(search={"space": space, "trials": 2, "sampler": "random"})
    run_search(config, tmp_path / "run")
    journal, says = (tmp_path / "run" / "study.log").read_bytes(), "cannot be read .*put it back"
    first = run_search(config, tmp_path / "run").rows[0]
    value, score = (f"{number!r}".encode() for number in (first.values[next(iter(space))], first.objective))
    rows = []
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
    report = partial(write_report, tmp_path / "run")
    refusals.check([*rows, ("its outcome", report, ConfigError, "go on with .*--resume")])


TEXT = (ROOT / "docs" / "guides" / "data.md").read_text()
YAML = re.findall(r"```yaml\n# pictures\.yaml\n(.*?)```", TEXT, re.DOTALL)
SMALL = ["rounds=1", "samples=1", "clients=4", "cohort=2", "model_options={width: 0.25}"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Three classes of images in odd sizes, and the configuration."""
    (text,) = YAML
    write_class_folders(tmp_path / "pictures", 15)
    (tmp_path / "pictures.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments):
    done = typed(*arguments)
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.slow
def test_from_a_folder_to_results_and_on_with_the_images_that_it_started_with(project):
    zipped(project / "pictures", project / "pictures.zip")
    for name, more in (("first", []), ("second", ["data_dir=pictures.zip"])):
        code, output = command("run", "pictures.yaml", "--out", name, "--set", *SMALL, *more)
        assert code == 0, output
    summary = read_summary(project / "first")
    assert summary["rounds"] == 1 and 0 <= summary["test_accuracy"] <= 1
    assert list((project / "first").glob("*.png"))
    first, second = (load_file(project / name / "state.safetensors") for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    longer = ["run", "--resume", "first", "--set", "rounds=2"]
    os.rename(project / "pictures" / "blue" / "00.png", project / "pictures" / "blue" / "99.png")
    drop(10)
    code, output = command(*longer)
    assert code == 2 and "not those that the run in first started with (blue: images of other names" in output
    assert "red: 15 images there, 5 here); bring them back" in output
    listed = (project / "first" / "data.json").read_text()
    (project / "first" / "data.json").write_text(listed[:40])
    code, output = command(*longer)
    assert code == 2 and "first/data.json cannot be read" in output
    (project / "first" / "images.json").write_text(listed)  # as earlier versions have called it
    (project / "first" / "data.json").unlink()
    code, output = command(*longer)
    assert code == 2 and "(blue: images of other names" in output
    code, output = command(*longer, "data_dir=pictures.zip")
    assert code == 0 and read_summary(project / "first")["rounds"] == 2


def compared(*methods):
    settings = [text for setting in SMALL for text in ("--set", setting)]
    arguments = ["--methods", ",".join(methods), "--seeds", "1", "--out", "both", *settings]
    return command("compare", "pictures.yaml", *arguments)


def drop(number):
    for path in sorted((Path("pictures") / "red").glob("*.*g"))[:number]:
        path.unlink()


@pytest.mark.slow
def test_a_comparison_and_its_report(project):
    for code, output in (compared("fedavg", "partitioned"), command("report", "both")):
        assert code == 0, output
    page = (project / "both" / "report.html").read_text()
    assert "examples of each" in page and "labels of each" in page
    assert "as learned" in page and '<img src="data:image/png;base64,' in page


@pytest.mark.slow
def test_changed_images_are_other_data(project):
    code, output = compared("fedavg")
    assert code == 0, output
    (project / "pictures" / "red" / "notes.txt").write_text("no image")
    code, output = compared("fedavg")
    assert code == 0 and "1 of 1 runs were finished before" in output
    drop(10)
    wanted = "red: 15 images there, 5 here"
    code, output = compared("fedavg", "partitioned")
    assert code == 2 and f"other settings ({wanted}); choose another folder" in output
    assert not (project / "both" / "partitioned").exists()
    code, output = command("report", "both")
    assert code == 0, output
    page = (project / "both" / "report.html").read_text()
    assert page.count(f"The data are not those that the runs are made of ({wanted}).") == 1
    shutil.rmtree(project / "pictures")  # finished runs are compared without them
    code, output = compared("fedavg")
    assert code == 0 and "1 of 1 runs were finished before" in output
