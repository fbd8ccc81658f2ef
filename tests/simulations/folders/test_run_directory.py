"""Runs on the disk: what a folder holds, and that nothing is lost, whenever a run dies."""

import errno
import io
import math
import os
import shutil
import subprocess
from functools import partial, reduce
from pathlib import Path

import pytest
import torch
import yaml
from interruptions import Died, DiesAfter, die, killed
from problems import upload_numbers
from safetensors import safe_open
from tiny import same_run
from tiny import tiny as whole
from tiny import tiny_file as file_of

from fedpart import SGDSettings
from fedpart.training.agreement import difference
from simulations.building.experiment import build
from simulations.config.gone import translated
from simulations.config.load import ConfigError
from simulations.config.yaml_files import as_yaml
from simulations.errors import RunError
from simulations.folders.contents import CONFIG, named, run_name
from simulations.folders.data_files import git_commit
from simulations.folders.run_directory import (
    CHECKPOINT,
    SUMMARY,
    RunDirectory,
    read_metrics,
    read_summary,
    saved_config,
)
from simulations.running.resume import resumed_config
from simulations.running.run import run_experiment

SMALL = {"model": "mlp", "model_options": {"hidden": [100]}}
tiny, tiny_file = partial(whole, **SMALL), partial(file_of, **SMALL)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    run_experiment(tiny(), folder)
    return folder


def test_a_folder_holds_everything(undisturbed):
    assert {path.name for path in undisturbed.iterdir()} == {
        "config.yaml", "metrics.jsonl", "summary.json", "state.safetensors", "checkpoint.pt",
        "checkpoint.previous.pt",
    }  # fmt: skip
    assert saved_config(undisturbed) == tiny()
    assert yaml.safe_load((undisturbed / "config.yaml").read_text())["seed"] == 0

    lines = read_metrics(undisturbed)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    for line in lines:
        assert {"train_loss", "upload_bytes", "download_bytes", "cohort"} <= set(line) and line["seconds"] > 0
        assert line["skipped"] == [] and line["refused"] == {}
        assert line["replies"] == 3 and line["stepped"]
        assert len(line["psi"]["raw"]["affine.range"]) == 6
        turned = line["psi"]["raw"]["affine.range"][2] * 180 / math.pi
        assert line["psi"]["physical"]["affine.angle_max [deg]"] == pytest.approx(turned, rel=1e-6)
        evaluated = line["round"] in (2, 4, 5)
        assert ("val_accuracy" in line) == ("val_nll" in line) == evaluated
        assert 0 <= line.get("val_accuracy", 0) <= 1

    summary = read_summary(undisturbed)
    told = [summary[key] for key in ("method", "engine", "seed", "rounds")]
    assert told == ["partitioned", "local", 0, 5]
    accuracies = [line["val_accuracy"] for line in lines if "val_accuracy" in line]
    assert summary["val_accuracy"] == accuracies[-1]
    assert summary["val_accuracy_last10"] == pytest.approx(sum(accuracies[1:]) / 2)
    assert summary["val_evaluations_averaged"] == 2 == len(accuracies) - 1
    assert 0 <= summary["test_accuracy"] <= 1
    assert summary["seconds"] == pytest.approx(sum(line["seconds"] for line in lines), abs=1e-3)
    assert summary["examples"] == sum(line["examples"] for line in lines) > 0
    assert 0 < summary["client_seconds"] <= summary["seconds"]
    assert set(summary["versions"]) == {"python", "fedpart", "torch", "numpy", "flwr", "ray"}
    assert "git_commit" in summary

    with safe_open(undisturbed / "state.safetensors", "pt") as state:
        assert state.metadata() is None
        names = set(state.keys())
        assert {"w/fc1.weight", "w/classes.bias", "psi/affine.range", "psi/dropout1.logit"} <= names
        assert all(name.startswith(("w/", "psi/")) for name in names)
        assert all(state.get_tensor(name).dtype == torch.float32 for name in names)
        ends = state.get_tensor("psi/affine.range").flatten().tolist()
        assert ends == lines[-1]["psi"]["raw"]["affine.range"]


def test_upload_ratio_is_what_the_drawn_cohorts_predict(undisturbed):
    summary, protocol = read_summary(undisturbed), build(tiny()).protocol
    cohorts = [protocol.cohort(round) for round in range(1, 6)]
    assert [line["cohort"] for line in read_metrics(undisturbed)] == cohorts
    sent = sum(upload_numbers(protocol, c, protocol.plan(c, 1)) for cohort in cohorts for c in cohort)
    predicted = sent / (15 * protocol.partition.space.size)
    assert summary["upload_ratio"] == pytest.approx(predicted, rel=5e-3)
    # six clients in the chunks .5/.3/.2 are 3, 2 and 1; the partitions' shares are .5/.3/.2
    expected = 3 / 6 * 1 + 2 / 6 * 0.5 + 1 / 6 * 0.2
    assert summary["upload_ratio_expected"] == pytest.approx(expected, rel=1e-3)


def test_building_is_a_function_of_the_configuration():
    config = tiny(rotated=True, split={"by": "angle", "alpha": 1.0})
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build(config)
    assert torch.equal(torch.get_rng_state(), before)  # the caller's random numbers are his own
    torch.manual_seed(2)
    two = build(config)
    assert one.protocol.fingerprint == two.protocol.fingerprint
    assert torch.equal(one.protocol.partition.space.initial(), two.protocol.partition.space.initial())
    parts = ([*built.shards, built.validation, built.test] for built in (one, two))
    for a, b in zip(*parts, strict=True):
        assert torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)
    sizes = [len(shard) for shard in one.shards]
    assert len(sizes) == 6 and min(sizes) >= 1 and sum(sizes) == 60
    assert (len(one.validation), len(one.test), one.num_classes) == (30, 40, 10)
    other = build(tiny(rotated=True, split={"by": "angle", "alpha": 1.0}, seed=1))
    assert not torch.equal(one.protocol.partition.space.initial(), other.protocol.partition.space.initial())
    assert torch.equal(one.shards[0].inputs, other.shards[0].inputs)  # data have a seed of their own


@pytest.mark.quick(1)
@pytest.mark.parametrize("round", [1, 3, 4])
def test_resuming_after_a_round_gives_the_same_bits(undisturbed, tmp_path, round):
    with pytest.raises(Died):
        run_experiment(tiny(), tmp_path, progress=DiesAfter(round))
    assert (tmp_path / "checkpoint.pt").exists() == (round >= 2)
    run_experiment(saved_config(tmp_path), tmp_path, resume=True)
    same_run(undisturbed, tmp_path)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["save", "finish"])
def test_resuming_after_a_death_between_metrics_and_checkpoint_or_before_the_summary(
    undisturbed, tmp_path, monkeypatch, name
):
    whole = getattr(RunDirectory, name)

    def last(self, what):
        if name == "finish" or what.round == 4:
            die()
        whole(self, what)

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(RunDirectory, name, last)
        run_experiment(tiny(), tmp_path)
    assert read_summary(tmp_path) is None
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 6, "secon')  # a line that was torn
    assert [line["round"] for line in read_metrics(tmp_path)][:4] == [1, 2, 3, 4]
    run_experiment(tiny(), tmp_path, resume=True)
    same_run(undisturbed, tmp_path)


def test_resuming_after_kill_9(undisturbed, tmp_path):
    killed(tiny(), tmp_path, 3)
    assert len(read_metrics(tmp_path)) == 3
    run_experiment(saved_config(tmp_path), tmp_path, resume=True)
    same_run(undisturbed, tmp_path)


@pytest.mark.quick(1)
@pytest.mark.parametrize("written", [CHECKPOINT, SUMMARY])
def test_resuming_after_a_full_disk(undisturbed, tmp_path, monkeypatch, written):
    """Simulated: from round 4 on, nothing more can be written into one of the files."""
    open_file, full = Path.open, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full(io.StringIO):
        def write(self, content):
            raise full

    def refuse(path, *arguments, **options):
        if path.name.startswith(written) and len(read_metrics(tmp_path)) >= 4:
            return Full()
        return open_file(path, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(RunError, match=r"is full .*room.*--resume"):
        patch.setattr(Path, "open", refuse)
        run_experiment(tiny(), tmp_path)
    run_experiment(tiny(), tmp_path, resume=True)
    same_run(undisturbed, tmp_path)


@pytest.mark.slow
def test_more_rounds_continue_a_finished_run(undisturbed, tmp_path):
    run_experiment(tiny(rounds=3), tmp_path)
    first = read_metrics(tmp_path)
    assert "val_accuracy" in first[2]
    run_experiment(resumed_config(tmp_path, None, ["rounds=5"]), tmp_path, resume=True)
    same_run(undisturbed, tmp_path)  # round 3's evaluation was out of turn, and is gone
    assert saved_config(tmp_path).rounds == 5


def with_keys(folder, **keys):
    """Write a run's configuration as it was written when there were more keys."""
    data = yaml.safe_load((folder / CONFIG).read_text())
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        reduce(lambda inside, part: inside[part], section.split(".") if section else [], data)[name] = value
    (folder / CONFIG).write_bytes(named(as_yaml(data, 110, None), run_name(folder)).encode())


def test_runs_from_when_there_were_more_keys_go_on(undisturbed, tmp_path):
    run_experiment(tiny(rounds=3), tmp_path)
    before = {
        "server.betas": [0.9, 0.999],
        "server_psi.eps": 1e-8,
        "hyperparameters.affine.align_corners": True,
        "hyperparameters.dropout.temperature": 0.1,
        **{
            "bucket": 1,
            "trim": None,
            "aggregation": "synchronous",
            "concurrency": None,
            "max_examples": None,
        },
        "split.bins": 10,
    }
    for key, value in {"server.betas": [0.9, 0.99], "server_psi.eps": 1e-7, "split.bins": 9}.items():
        with_keys(tmp_path, **{**before, key: value})
        with pytest.raises(ConfigError, match=rf"{key} was another than .*, which alone is left"):
            saved_config(tmp_path)
    with_keys(tmp_path, **before)
    run_experiment(resumed_config(tmp_path, None, ["rounds=5"]), tmp_path, resume=True)
    same_run(undisturbed, tmp_path)


def test_keys_of_before_are_translated_where_there_are_others_for_them(tmp_path):
    """As the settings that a checkpoint has from then are."""
    devices = {"speed": None, "upload": None, "download": None, "available": 1.0, "trace": "/trace.csv"}
    data = {
        "trim": 0.3,
        "bucket": 2,
        "aggregation": "buffered",
        "buffer": None,
        "cohort": 4,
        "devices": devices,
    }
    data |= {"schedule": {"shape": "cosine", "final_rate": 0.01, "iterations": 7}, "execution": "vectorised"}
    now = {"defence": "trim", "defence_options": {"share": 0.3, "bucket": 2}, "buffer": 4}
    agreed = {key: data[key] for key in ("trim", "bucket", "aggregation", "buffer", "cohort")}
    assert not difference(now, agreed) and difference({**now, "buffer": 3}, agreed)
    translated(data)
    rest = {"cohort": 4, "devices": "/trace.csv", "schedule": "cosine", "schedule_iterations": 7}
    assert data == {**now, **rest, "execution": "grouped"}


def test_a_server_with_momentum_of_before_is_fedavgm(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    with_keys(tmp_path, **{"server.name": "sgd", "server.learning_rate": 0.5, "server.momentum": 0.9})
    saved = saved_config(tmp_path)
    assert saved.method == "partitioned+fedavgm"
    assert saved.settings().stepped_by == SGDSettings(0.5, 0.9)


def test_a_finished_run_is_left_alone_and_never_written_over(undisturbed):
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in undisturbed.iterdir()}
    assert run_experiment(tiny(), undisturbed, resume=True) == read_summary(undisturbed)
    with pytest.raises(FileExistsError, match=r"already holds a run.*--resume .*--out"):
        run_experiment(tiny(), undisturbed)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in undisturbed.iterdir()} == before


def test_resuming_with_another_configuration_names_the_difference(undisturbed, tmp_path):
    with pytest.raises(ConfigError, match=r"has server\.learning_rate = 0\.001, not 0\.1"):
        resumed_config(undisturbed, None, ["server.learning_rate=0.1"])
    with pytest.raises(ConfigError, match="has rounds = 5, not 4"):
        resumed_config(undisturbed, None, ["rounds=4"])
    with pytest.raises(ConfigError, match="has seed = 0, not 7"):
        resumed_config(undisturbed, str(tiny_file(tmp_path, seed=7)), [])
    assert resumed_config(undisturbed, str(tiny_file(tmp_path, engine="ray")), []) == tiny()
    assert resumed_config(undisturbed, None, ["engine=ray", "rounds=9"]) == tiny(engine="ray", rounds=9)
    with pytest.raises(ConfigError, match=r"holds no run .*; fedpart run CONFIG --out DIR"):
        resumed_config(tmp_path, None, [])


def test_a_checkpoint_without_its_metrics_is_refused(tmp_path):
    with pytest.raises(Died):
        run_experiment(tiny(), tmp_path, progress=DiesAfter(4))
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="does not hold the rounds 1 to 4"):
        run_experiment(tiny(), tmp_path, resume=True)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (tmp_path / name).write_bytes(b"torn")
    with pytest.raises(ConfigError, match=r"checkpoint\.pt cannot be read .*previous\.pt cannot be read"):
        run_experiment(tiny(), tmp_path, resume=True)


def test_the_commit_tells_changed_files(tmp_path, monkeypatch):
    root = tmp_path / "one more"

    def git(*arguments):
        settings = ("user.name=Someone", "user.email=someone@example.org", "commit.gpgsign=false")
        options = [part for setting in settings for part in ("-c", setting)]
        command = ["git", "-C", str(root), *options, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (root / "inner").mkdir(parents=True)
    monkeypatch.setattr("simulations.folders.data_files._ROOT", root)
    git("init")
    (root / "file").write_text("before")
    assert git_commit() is None  # there is no commit yet
    git("add", "file")
    git("commit", "--no-verify", "--message", "first")
    git("update-ref", "refs/tags/v1", "HEAD")
    commit = git("rev-parse", "HEAD")
    (root / "untracked").write_text("a user's")
    assert git_commit() == commit
    (root / "file").write_text("changed")
    assert git_commit() == f"{commit}+changes"
    monkeypatch.setattr("simulations.folders.data_files._ROOT", root / "inner")  # another project's
    assert git_commit() is None
