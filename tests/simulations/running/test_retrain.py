"""Runs that follow from others: plain networks with a psi that was found, another method beside."""

import json
from pathlib import Path

import pytest
import yaml
from command_line import fedpart, refused, shown
from safetensors.torch import load_file
from tiny import tiny, tiny_training

from fedpart import AffineAugmentation
from simulations.config.load import ConfigError
from simulations.folders.run_directory import read_metrics, read_summary, saved_config
from simulations.results.terminal.panel import panel
from simulations.running import resume
from simulations.running.run import run_experiment

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

DIGITS = {"data": "digits", "model": "digits_cnn", "model_options": {}, "iterations": 3}
DIGITS |= {"hyperparameters": {"affine": {"initial": 0.1}}}


def state(folder, kind="psi"):
    tensors = load_file(Path(folder) / "state.safetensors")
    return {name: t.numpy().tobytes() for name, t in tensors.items() if name.startswith(f"{kind}/")}


def on_digits(**changes):
    return tiny_training(**{**DIGITS, **changes})


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "found",
    [
        tiny_training(keep_best=True),  # a learned mask
        on_digits(),
        on_digits(method="augerino"),  # its affine family is not the configuration's
        on_digits(method="augerino", hyperparameters={"affine": {"initial": [0.2] + [0.05] * 5}}),
        on_digits(method="validation", chunks=[0.8, 0.2]),
        tiny(rounds=1),
        tiny(rounds=1, method="augerino"),
    ],
)
def test_a_plain_network_is_trained_with_the_psi_of_any_run(found):
    run_experiment(found, "found")
    result = fedpart("retrain", "found", "iterations=2", "--set", "seed=1", "--out", "again")
    assert result.exit_code == 0, result.output
    assert state("found") and state("found") == state("again")
    config = saved_config("again")
    assert (config.method, config.seed, config.data_seed) == ("none", 1, found.data_seed)
    assert read_metrics("again")[0].get("lml") is None
    assert Path("again/transforms.png").is_file() == (found.data == "digits")


def test_what_has_found_no_psi_is_refused():
    run_experiment(tiny_training(iterations=2), "found")
    other = fedpart("retrain", "found", "--set", "hyperparameters.mask=null", "--out", "other")
    refused(other, "does not fit", "mask.logit is [30] there and missing here")
    Path("found/state.safetensors").write_bytes(b"torn")
    refused(fedpart("retrain", "found", "--out", "other"), "state.safetensors cannot be read")
    Path("found/state.safetensors").unlink()
    refused(fedpart("retrain", "found"), "is not finished", "fedpart train --resume found")
    refused(fedpart("retrain", "nowhere"), "holds no run")
    for config in (tiny_training(iterations=1, method="none"), tiny(rounds=1, method="fedavg")):
        run_experiment(config, config.method)
        refused(fedpart("retrain", config.method), f"its method '{config.method}' learns none")
    assert {path.name for path in Path().iterdir()} == {"found", "none", "fedavg"}


def written(tmp_path, **settings):
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({**tiny(**settings).resolved(), "search": None}))
    return file


@pytest.mark.slow
def test_it_is_the_run_that_a_command_of_its_own_makes(tmp_path, monkeypatch):
    made, make = [], resume.beside_config
    monkeypatch.setattr(resume, "beside_config", lambda config: made.append(config) or make(config))
    out, alone = tmp_path / "run", tmp_path / "alone"
    done = fedpart("run", written(tmp_path, beside="fedavg"), "--out", out)
    assert done.exit_code == 0 and len(made) == 1, done.output
    assert "the same without learned hyperparameters" not in done.output  # it stands there already
    run_experiment(tiny(method="fedavg"), alone)
    assert (out / "beside" / "state.safetensors").read_bytes() == (alone / "state.safetensors").read_bytes()
    score, own = (json.loads((p / "summary.json").read_text()) for p in (out / "beside", out))
    for panel_of in (done.output, fedpart("show", out).output):
        text = " ".join(panel_of.replace("│", " ").split())
        assert f"fedavg, the same clients and cohorts: {score['test_accuracy']:.1%}" in text
        assert f"{score['upload_bytes'] / own['upload_bytes']:.2f} times as much" in text


@pytest.mark.slow
def test_resume_makes_what_is_missing_and_goes_on_with_both(tmp_path):
    out, through = tmp_path / "run", tmp_path / "through"
    config = tiny(rounds=2, beside="fedavg")
    run_experiment(config, out)  # as if it had been stopped between the two
    assert fedpart("run", "--resume", out).exit_code == 0
    assert json.loads((out / "beside" / "summary.json").read_text())["rounds"] == 2
    assert "already finished" in fedpart("run", "--resume", out).output
    assert fedpart("run", "--resume", out, "--set", "rounds=4").exit_code == 0
    run_experiment(tiny(rounds=4, method="fedavg"), through)
    assert (out / "beside" / "state.safetensors").read_bytes() == (through / "state.safetensors").read_bytes()


def test_what_the_other_method_cannot_do_is_refused_before_the_run_and_itself_is_left_out(tmp_path):
    with pytest.raises(ConfigError, match="laplace"):
        tiny(beside="laplace")
    caps = {"scheme": "node", "defaults": "zeros", "caps": {1: 1.0}, "beside": "fedavg"}
    out = tmp_path / "run"
    refused(fedpart("run", written(tmp_path, **caps), "--out", out), "caps")
    assert not out.exists()
    done = fedpart("run", written(tmp_path, rounds=1, method="fedavg", beside="fedavg"), "--out", out)
    assert done.exit_code == 0, done.output
    assert not (out / "beside").exists() and "same clients and cohorts" not in done.output


AUGERINO = {"affine": {"family": "augerino"}, "dropout": {"rate": 0.1}}
RATES = {"learning_rate": 0.01}


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["loop", "fused"])
def test_partitioned_training_under_the_psi_that_augerino_has_found(tmp_path, execution):
    """docs/guides/settings.md: w is trained, psi stays to the bit."""
    found, frozen = tmp_path / "found", tmp_path / "frozen"
    run_experiment(tiny(method="augerino", hyperparameters=AUGERINO, server_psi=RATES), found)
    start = {"psi_from": str(found), "server_psi": {"learning_rate": 1e-30}}
    run_experiment(tiny(hyperparameters=AUGERINO, execution=execution, **start), frozen)
    assert state(frozen) == state(found)
    assert state(frozen, "w") != state(found, "w")
    first = read_metrics(found)[0]["psi"]["raw"]
    assert read_metrics(frozen)[0]["psi"]["raw"] == read_metrics(found)[-1]["psi"]["raw"] != first


def test_centres_that_have_left_the_identity_are_said_at_the_end(tmp_path):
    """Minimum and maximum that step the same way by five times their half-width; ends of ``lila`` cannot."""
    run = tmp_path / "run"
    affine = {"family": "minmax", "initial": 0.002}
    told = tiny(hyperparameters={"affine": affine}, server_psi=RATES, rounds=2)
    summary = run_experiment(told, run)
    own = {name.removeprefix("affine."): value for name, value in summary["psi"].items()}
    assert summary["psi_remarks"] == [f"affine: {one}" for one in AffineAugmentation("minmax").remarks(own)]
    assert read_summary(run) == summary
    text = shown(panel(summary, run), 400)
    assert "note" in text and text.count("leave out images as they are") == 1
    quiet = run_experiment(tiny(server_psi=RATES, rounds=2), tmp_path / "quiet")
    assert "psi_remarks" not in quiet


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "settings",
    [
        # Augerino in the task's family, probabilities averaged, at the paper's rate (I.4)
        ["method=augerino", "method_options={augerino: {family: null}}", "average=probabilities"],
        # FedAvg with S dropout masks
        ["method=fedavg", "method_options={fedavg: {augment: true}}", "hyperparameters.affine=null"],
    ],
)
def test_the_settings_of_the_guide_start(tmp_path, settings):
    file = Path(__file__).parents[3] / "simulations" / "configs" / "table4" / "mnist_1250.yaml"
    few = ["data=digits", "rounds=1", "clients=4", "cohort=2", "training_points=32", "validation_points=8",
           "test_points=8", "samples=2", "precision=fp32", "server_psi.learning_rate=0.05"]  # fmt: skip
    done = fedpart("run", file, "--engine", "local", "--out", tmp_path / "run", "--set", *few, *settings)
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_another_run_beside_is_refused_before_a_round(tmp_path):
    out = tmp_path / "run"
    run_experiment(tiny(rounds=2, beside="fedavg"), out)
    assert fedpart("run", "--resume", out).exit_code == 0
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    for more in ("rounds=4", "samples=1"):
        done = fedpart("run", "--resume", out, "--set", "beside=augerino", more)
        refused(done, "method = 'fedavg', not 'augerino'") if more == "rounds=4" else refused(done, "samples")
    refused(fedpart("run", "--resume", out, "--set", "beside=augerino"), "method = 'fedavg', not 'augerino'")
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
