"""Centralised runs on the disk and on the command line."""

import json
import os
import signal
from pathlib import Path

import pytest
from command_line import fedpart, refused
from interruptions import Died, die
from safetensors.torch import load_file
from tiny import TINY, same_run, tiny_training, tiny_training_file

from fedpart import Training
from simulations.config.load import ConfigError, TrainingConfig
from simulations.folders.run_directory import read_metrics, read_summary, saved_config
from simulations.results.pictures.run_figures import plot_run
from simulations.running.resume import resumed_config
from simulations.running.run import run_experiment

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


FINETUNED = {"method_options": {"validation": {"finetune_epochs": 1}}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    run_experiment(tiny_training(keep_best=True), folder)
    return folder


def psi_of(folder):
    return load_file(folder / "state.safetensors")["psi/mask.logit"].tolist()


def test_a_folder_holds_everything(undisturbed):
    assert {path.name for path in undisturbed.iterdir()} == {
        "config.yaml", "metrics.jsonl", "summary.json", "state.safetensors", "checkpoint.pt",
        "checkpoint.previous.pt",
    }  # fmt: skip
    assert saved_config(undisturbed) == tiny_training(keep_best=True)
    lines = read_metrics(undisturbed)
    assert [line["iteration"] for line in lines] == [10, 20, 30]
    for line in lines:
        keys = {"iteration", "seconds", "train_loss", "lml", "psi", "val_accuracy", "val_nll"}
        assert set(line) == keys
        assert len(line["psi"]["raw"]["mask.logit"]) == 30
        assert "mask.keep[0] [%]" in line["psi"]["physical"]
    summary = read_summary(undisturbed)
    best = max(lines, key=lambda line: line["lml"])
    assert (summary["lml"], summary["lml_iteration"]) == (best["lml"], best["iteration"])
    assert psi_of(undisturbed) == best["psi"]["raw"]["mask.logit"]
    parts = [(part["k"], part["examples"], part["next"] is None) for part in summary["subnetworks"]]
    assert parts == [(1, 60, False), (2, 90, False), (3, 120, True)]
    full = summary["subnetworks"][-1]
    assert summary["train_nll"] == full["train"]["nll"]
    assert summary["test_accuracy"] == full["test"]["accuracy"]
    assert [stage["name"] for stage in summary["stages"]] == ["trained"]
    assert summary["iterations"] == 30


@pytest.mark.quick(1)
@pytest.mark.parametrize("checkpoint_every", [10, 7, 1000])
def test_an_interrupted_run_ends_with_the_same_bits(undisturbed, tmp_path, monkeypatch, checkpoint_every):
    step = Training.step

    def interrupt(self):
        if self.completed == 16:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    file = tiny_training_file(tmp_path, keep_best=True, checkpoint_every=checkpoint_every)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", interrupt)
        stopped = fedpart("train", file, "--out", "stopped")
    assert stopped.exit_code == 130
    assert "Stopped after iteration 17; continue with: fedpart train --resume stopped" in stopped.stderr
    assert [line["iteration"] for line in read_metrics("stopped")] == [10]
    resumed = fedpart("train", "--resume", "stopped")
    assert resumed.exit_code == 0, resumed.output
    assert "resumed after iteration 17" in resumed.stdout
    same_run(undisturbed, Path("stopped"))


@pytest.mark.parametrize("where", ["Progress.report", "RunDirectory.finish"])
def test_a_killed_run_goes_on_from_its_checkpoint(undisturbed, tmp_path, monkeypatch, where):
    """At iteration 20, with a checkpoint of 15; or before the summary, which does not lose the best state."""

    def end(self, told):
        if where == "RunDirectory.finish" or told.iteration == 20:
            die()

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(f"simulations.running.run.{where}", end)
        run_experiment(tiny_training(keep_best=True, checkpoint_every=15), tmp_path)
    assert [line["iteration"] for line in read_metrics(tmp_path)][:2] == [10, 20]
    run_experiment(saved_config(tmp_path), tmp_path, resume=True)
    same_run(undisturbed, tmp_path)


def test_more_iterations_continue_a_finished_run(tmp_path):
    run_experiment(tiny_training(), tmp_path / "whole")
    run_experiment(tiny_training(iterations=20), tmp_path / "grown")
    more = resumed_config(tmp_path / "grown", None, ["iterations=30"], TrainingConfig)
    run_experiment(more, tmp_path / "grown", resume=True)
    same_run(tmp_path / "whole", tmp_path / "grown")


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "cosine"},
        {"keep_best": True},  # the state that would go on is the best, not the last
        {"method": "validation", "chunks": [0.5, 0.5], **FINETUNED},
    ],
)
def test_runs_whose_end_is_planned_do_not_grow(tmp_path, changes):
    run_experiment(tiny_training(iterations=10, **changes), tmp_path)
    before = saved_config(tmp_path)
    with pytest.raises(ConfigError, match="iterations are part of its schedule"):
        resumed_config(tmp_path, None, ["iterations=20"], TrainingConfig)
    assert saved_config(tmp_path) == before


def test_stages_are_tested_where_they_end(tmp_path):
    config = tiny_training(method="validation", chunks=[0.9, 0.1], iterations=15, **FINETUNED)
    summary = run_experiment(config, tmp_path)
    assert [(stage["name"], stage["iteration"]) for stage in summary["stages"]] == [
        ("optimised", 15), ("finetuned", 23),
    ]  # fmt: skip
    lines = {line["iteration"]: line for line in read_metrics(tmp_path)}
    assert list(lines) == [10, 15, 20, 23]
    assert lines[15]["stage"] == "optimised"
    assert lines[15]["test_nll"] == summary["stages"][0]["test_nll"]
    assert summary["stages"][1]["test_nll"] == summary["test_nll"] != summary["stages"][0]["test_nll"]
    assert summary["lml"] is None
    (only,) = summary["subnetworks"]
    assert only["examples"] == 120 and only["next"] is None  # finetuned on both chunks


@pytest.mark.parametrize(("method", "subnetworks"), [("none", 1), ("separate", 3), ("validation", 1)])
def test_baselines_run(tmp_path, method, subnetworks):
    chunks = {"chunks": [0.9, 0.1]} if method == "validation" else {}
    summary = run_experiment(tiny_training(method=method, **chunks), tmp_path)
    assert len(summary["subnetworks"]) == subnetworks
    assert (summary["lml"] is None) == (method != "separate")
    if method == "validation":  # its set is not among the examples trained on
        (only,) = summary["subnetworks"]
        assert only["examples"] == 108
        assert summary["train_nll"] == only["train"]["nll"] != only["next"]["nll"]


@pytest.mark.slow
def test_train_shows_progress_a_summary_and_pictures(tmp_path):
    result = fedpart("train", tiny_training_file(tmp_path), "--set", "seed=3")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "partitioned on input_selection: 30 iterations; files in runs/training-partitioned" in lines[1]
    assert lines[2].startswith("iteration 10/30: val. accuracy ")
    assert "L_ML -" in lines[2] and "mask keeps " in lines[2]
    for part in ("mask keeps", "on test data", "nats at iteration 30", "fedpart retrain"):
        assert part in result.stdout
    folder = Path("runs/training-partitioned-seed3")
    assert {path.name for path in folder.glob("*.png")} == {"learning_curve.png", "mask.png"}
    done = fedpart("train", "--resume", folder)
    assert "already finished; add --set iterations=N" in done.stdout


def test_whose_run_it_is(undisturbed, tmp_path):
    refused(fedpart("run", "--resume", undisturbed), "centralised training", "fedpart train --resume")
    refused(fedpart("train"), "Name a configuration", "fedpart train")
    config = Path("federated.yaml")
    config.write_text(json.dumps(TINY))
    refused(fedpart("train", config), "federated experiments", "fedpart run")
    refused(fedpart("train", "--resume", undisturbed, "--set", "seed=5"), "seed = 0, not 5")


def test_an_augerino_that_diverges_ends_in_one_sentence_and_can_be_read_and_resumed(tmp_path):
    digits = {"data": "digits", "model": "digits_cnn", "model_options": {}, "hyperparameters": {"affine": {}}}
    unsafe = {"augerino": {"safe": False, "weight": 1.0}}
    far = {"method": "augerino", "method_options": unsafe, "optimiser_psi": {"learning_rate": 4.0}}
    wild = tiny_training_file(tmp_path, optimiser={"name": "sgd", "learning_rate": 1e30})
    refused(fedpart("train", wild, "--out", "wild"), "iteration", "lower the learning rates", status=1)
    assert read_summary("wild") is None
    bad = tiny_training_file(tmp_path, **digits, **far)
    sentence = "has diverged, as its objective is unbounded", "use the safe one (safe: true)"
    refused(fedpart("train", bad, "--out", "bad"), *sentence, status=1)
    before = read_metrics("bad")
    assert [line["iteration"] for line in before] == [10]
    assert plot_run("bad")
    again = fedpart("train", "--resume", "bad")
    refused(again, *sentence, status=1)
    assert "resumed after iteration 10" in again.stdout
    assert read_metrics("bad") == before


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["hyperparameters.mask.kept=31"], "first 1 to 30 of 30 features, got 31"),
        (["hyperparameters.mask.kept=[1, 0]"], "2 entries, but there are 30 features"),
        (["parameters=[0.5, 0.5]"], "3 chunk proportions but 2 parameter proportions"),
        (["hyperparameters.affine={}"], "write hyperparameters without affine"),
        (["data=digits", "model=digits_cnn", "model_options={}"], "set hyperparameters.mask: null"),
        (["training_points=2"], "Chunk 3 of 3 gets none of the 2 examples"),
        (["method=validation"], "for instance"),
        (["method=validation", "chunks=[1.0]"], "above 0, for instance [0.9, 0.1]"),
        (["method=validation", "chunks=[1.0, 0.0]"], "must be positive numbers, got [1.0, 0.0]"),
        (["method=none", "keep_best=true"], "keep_best needs L_ML"),
        (["psi_from=nowhere"], "holds no finished run"),
        (["chunks=[1.0]"], "give two chunks or more, or use method: none"),
        (["psi_every=31"], "psi_every is 31, but there are 30 iterations"),
        (["method=augerino", "method_options.augerino.weight=x"], "weight is a number >= 0, got 'x'"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, settings, wanted):
    overrides = [argument for setting in settings for argument in ("--set", setting)]
    refused(fedpart("train", tiny_training_file(tmp_path), *overrides), wanted)
    assert not (tmp_path / "runs").exists()


def test_training_by_an_evidence_is_resumed_with_the_same_bits_and_says_whose_evidence_it_is(
    tmp_path, monkeypatch
):
    options = {"laplace": {"evidence": "last_layer", "burn_in": 1}}
    changes = {"method": "laplace", "method_options": options, "checkpoint_every": 7}
    run_experiment(tiny_training(**changes), tmp_path / "calm")
    step = Training.step

    def last(self):
        if self.completed == 25:  # the checkpoint is of 21, two epochs of eight iterations after the burn-in
            die()
        return step(self)

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Training, "step", last)
        run_experiment(tiny_training(**changes), tmp_path / "killed")
    run_experiment(saved_config(tmp_path / "killed"), tmp_path / "killed", resume=True)
    same_run(tmp_path / "calm", tmp_path / "killed")
    summary = read_summary(tmp_path / "calm")
    assert summary["evidence"] == "own"
    assert {"evidence.alpha", "evidence.beta"} < summary["psi"].keys()
    assert [stage["name"] for stage in summary["stages"]] == ["burnt in", "trained"]
