"""A method that is run beside another one on the same clients: `beside: fedavg`."""

import json
from pathlib import Path

import pytest
import yaml
from command_line import fedpart, refused
from tiny import tiny

from simulations.config.load import ConfigError
from simulations.running import resume
from simulations.running.run import run_experiment


def written(tmp_path: Path, **settings) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({**tiny(**settings).resolved(), "search": None}))
    return file


def test_it_is_the_run_that_a_command_of_its_own_makes(tmp_path: Path) -> None:
    out, alone = tmp_path / "run", tmp_path / "alone"
    done = fedpart("run", written(tmp_path, beside="fedavg"), "--out", out)
    assert done.exit_code == 0, done.output
    run_experiment(tiny(method="fedavg"), alone)
    assert (out / "beside" / "state.safetensors").read_bytes() == (alone / "state.safetensors").read_bytes()
    score, own = (json.loads((p / "summary.json").read_text()) for p in (out / "beside", out))
    for shown in (done.output, fedpart("show", out).output):
        text = " ".join(shown.replace("│", " ").split())
        assert f"fedavg, the same clients and cohorts: {score['test_accuracy']:.1%}" in text
        assert f"{score['upload_bytes'] / own['upload_bytes']:.2f} times as much" in text


def test_resume_makes_what_is_missing_and_goes_on_with_both(tmp_path: Path) -> None:
    out, through = tmp_path / "run", tmp_path / "through"
    config = tiny(rounds=2, beside="fedavg")
    run_experiment(config, out)  # as if it had been stopped between the two
    assert fedpart("run", "--resume", out).exit_code == 0
    assert json.loads((out / "beside" / "summary.json").read_text())["rounds"] == 2
    assert "already finished" in fedpart("run", "--resume", out).output
    assert fedpart("run", "--resume", out, "--set", "rounds=4").exit_code == 0
    run_experiment(tiny(rounds=4, method="fedavg"), through)
    assert (out / "beside" / "state.safetensors").read_bytes() == (through / "state.safetensors").read_bytes()


def test_its_configuration_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], resume.beside_config

    def count(config):
        made.append(config)
        return make(config)

    monkeypatch.setattr(resume, "beside_config", count)
    done = fedpart("run", written(tmp_path, rounds=1, beside="fedavg"), "--out", tmp_path / "run")
    assert done.exit_code == 0 and len(made) == 1
    assert json.loads((tmp_path / "run" / "beside" / "summary.json").read_text())["method"] == "fedavg"
    assert "the same without learned hyperparameters" not in done.output  # it stands there already


def test_a_method_beside_itself_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = fedpart("run", written(tmp_path, method="fedavg", beside="fedavg"), "--out", out)
    assert done.exit_code == 0, done.output
    assert not (out / "beside").exists()
    assert "same clients and cohorts" not in done.output


def test_what_the_other_method_cannot_do_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="laplace"):
        tiny(beside="laplace")
    caps = {"scheme": "node", "defaults": "zeros", "caps": {1: 1.0}, "beside": "fedavg"}
    out = tmp_path / "run"
    refused(fedpart("run", written(tmp_path, **caps), "--out", out), "caps")
    assert not out.exists()
