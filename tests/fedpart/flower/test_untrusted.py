"""Nothing that came over the network is unpickled; what configurations say of uploads."""

import ast
import io
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array
from malformed import EXECUTED, objects
from tiny import tiny

import fedpart
from simulations.config.load import ConfigError
from simulations.errors import RunError
from simulations.folders.run_directory import SUMMARY, read_metrics
from simulations.running.run import run_experiment

ROOT = Path(fedpart.__file__).parent.parent
WIRE = [ROOT / "fedpart" / "federated" / "wire.py", *(ROOT / "fedpart" / "codecs").glob("*.py")]
WIRE += (ROOT / "fedpart" / "flower").rglob("*.py")
UNPICKLES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def names(tree):
    """Every module that is imported and every attribute or keyword that is used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword):
            yield node.arg


def test_what_reads_messages_cannot_unpickle():
    banned = {*UNPICKLES, "load", "loads_pickle", "allow_pickle", "fromfile"}
    used = {file: banned & set(names(ast.parse(file.read_text()))) for file in WIRE}
    assert len(used) > 15 and not {file: names for file, names in used.items() if names}


def test_a_pickled_array_is_not_read_by_clients_either():
    """Clients read the server's arrays with Flower's own reader."""
    EXECUTED.clear()
    data = objects(b"")
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Array("object", (1,), "numpy.ndarray", data).numpy()
    assert EXECUTED == []
    np.load(io.BytesIO(data), allow_pickle=True)
    assert EXECUTED == ["unpickled"], "the payload works"


@pytest.mark.parametrize(("engine", "expected"), [("local", "fail"), ("ray", "fail"), ("flower", "skip")])
def test_deployed_runs_skip_unless_they_are_told_otherwise(engine, expected):
    assert tiny(engine=engine).settings().on_client_error == expected
    served = tiny().model_copy(update={"engine": engine})  # as the ServerApp makes it
    assert served.settings().on_client_error == expected
    for given in ("fail", "skip"):
        assert tiny(engine=engine, on_client_error=given).settings().on_client_error == given


def test_safeguards_of_a_configuration_are_those_of_its_settings():
    config = tiny(
        max_examples=500,
        round_timeout=30,
        weighting="uniform",
        clip={"weights": [1.0, 0.5, 0.25], "psi": 0.1},
        privacy={"noise_multiplier": 1.1, "randomness": "seed"},
    )
    settings = config.settings()
    assert settings.clip == fedpart.ClipSettings((1.0, 0.5, 0.25), 0.1)
    assert settings.privacy == fedpart.PrivacySettings(1.1, 1e-5, "seed")
    assert (settings.max_examples, settings.min_replies, settings.round_timeout) == (500, 1, 30)
    assert tiny(trim=0.1, weighting="uniform", min_replies=2).settings().trim == 0.1
    with pytest.raises(ConfigError, match=r"set weighting: uniform"):
        tiny(trim=0.1)


def test_a_run_tells_what_it_refused_and_spent(tmp_path):
    config = tiny(
        rounds=2,
        weighting="uniform",
        on_client_error="skip",
        max_examples=8,
        clip={"weights": 1.0, "psi": 1.0},
        privacy={"noise_multiplier": 2.0, "delta": 1e-3, "randomness": "seed"},
    )
    summary = run_experiment(config, tmp_path / "run")
    lines = read_metrics(tmp_path / "run")
    refused = sum(len(line["skipped"]) for line in lines)
    assert refused > 0 and summary["refused"] == {"examples": refused}
    assert summary["skipped_clients"] == refused
    assert all(line["refused"] == ({"examples": n} if (n := len(line["skipped"])) else {}) for line in lines)
    assert {one["category"] for line in lines for one in line["skipped"]} == {"examples"}
    assert 0 < lines[0]["epsilon"] < lines[1]["epsilon"] == summary["epsilon"]
    assert summary["delta"] == 1e-3 and summary["rounds_without_step"] == 0


def test_a_run_in_which_no_round_steps_fails_with_the_commonest_reason(tmp_path):
    """Its summary would be one of untrained weights."""
    nobody = {"on_client_error": "skip", "max_examples": 1}
    for more in (
        {"min_replies": 2},
        {  # with privacy every round steps, if only by noise
            "weighting": "uniform",
            "clip": {"weights": 1.0, "psi": 1.0},
            "privacy": {"noise_multiplier": 2.0, "randomness": "seed"},
        },
    ):
        folder, config = tmp_path / str(len(more)), tiny(rounds=2, **nobody, **more)
        says = r"none of 2 rounds had .* \(\d times\) because of examples, .* client"
        for resume in (False, True):
            with pytest.raises(RunError, match=says):
                run_experiment(config, folder, resume=resume)
        assert not (folder / SUMMARY).exists()
    told = [(line["stepped"], line["replies"], line["train_loss"]) for line in read_metrics(tmp_path / "1")]
    assert told == [(False, 0, None)] * 2


def test_a_run_in_which_some_rounds_do_not_step_says_how_many(tmp_path):
    config = tiny(rounds=3, on_client_error="skip", max_examples=10, min_replies=2)
    summary, lines = run_experiment(config, tmp_path), read_metrics(tmp_path)
    assert [line["stepped"] for line in lines] == [line["replies"] >= 2 for line in lines]
    assert 0 < summary["rounds_without_step"] == sum(not line["stepped"] for line in lines) < 3
