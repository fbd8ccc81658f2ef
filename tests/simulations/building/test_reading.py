"""fedpart.load: the network of a run's folder is the one that the run has tested, whatever kind it was."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import fedpart as command
from sizes import TWO
from tiny import tiny, tiny_training, unnamed

import fedpart
from simulations.building.experiment import build
from simulations.config.load import Config
from simulations.folders.run_directory import read_summary
from simulations.running.run import run_experiment


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        tiny(rounds=2),
        tiny(rounds=1, method="augerino"),  # its affine family is not the configuration's
        tiny(rounds=1, evaluation_samples=1),
        tiny(  # the weights of both sizes are composed
            rounds=1,
            method="fedavg",
            model="digits_cnn",
            architectures=TWO,
            sharing={"kind": "basis"},
        ),
        tiny_training(keep_best=True),
        tiny_training(iterations=10, method="separate"),
        tiny_training(
            iterations=10,
            method="validation",
            chunks=[0.8, 0.2],
            method_options={"validation": {"finetune_epochs": 1}},  # iterations beyond the configuration's
        ),
    ],
)
def test_it_scores_as_the_run_has(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, test = run_experiment(config, "run"), build(config).test
    monkeypatch.setattr("simulations.building.reading.load_data", None)  # the data need not be there
    run = fedpart.load("run")
    samples = getattr(config, "evaluation_samples", None)
    found = run.state.evaluate(test, samples=samples)
    assert (found["nll"], found.get("accuracy")) == (summary["test_nll"], summary["test_accuracy"])
    assert run.psi == summary["psi"] and run.config == config.resolved()
    assert run.predict(test.inputs[:3]).shape == run.module()(test.inputs[:3]).shape


def test_of_retraining_the_run_that_had_found_psi_may_be_gone() -> None:
    run_experiment(tiny(rounds=1), "found")
    done = command("retrain", "found", "iterations=2", "--out", "again")
    assert done.exit_code == 0, done.output
    found = fedpart.load("found").psi
    shutil.rmtree("found")
    assert fedpart.load("again").psi == found


def test_a_run_from_before_summaries_named_the_inputs_is_read_with_its_data() -> None:
    summary = run_experiment(tiny(rounds=1), "run")
    kept = {key: value for key, value in summary.items() if key not in ("inputs", "num_classes")}
    before = fedpart.load("run")
    (unnamed(Path("run")) / "summary.json").write_text(json.dumps(kept))
    assert "inputs" not in (read_summary("run") or {"inputs": ()})
    assert torch.equal(fedpart.load("run").state.w, before.state.w)
