"""`flwr run .` as a user types it: Flower packs the app into a FAB and simulates it, without a network."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from flwr_command import flwr_command
from places import ROOT
from safetensors.torch import load_file

from fedpart import Federation
from fedpart.engines import LocalEngine
from simulations.flower.config import build_experiment

OVERRIDES = "rounds=2 clients=5 cohort=3 samples=2 training_points=100 evaluate_every=2"


@pytest.fixture
def flwr(tmp_path):
    """Runs the flwr command on a copy of the checkout."""
    app = tmp_path / "app"
    for name in ("fedpart", "server", "client", "simulations"):
        shutil.copytree(ROOT / name, app / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, app / name)
    with flwr_command(app, Path(sys.executable), tmp_path / "flwr") as call:
        yield call


@pytest.mark.deployment
@pytest.mark.slow
def test_flwr_run_equals_the_local_engine(flwr, tmp_path):
    out = tmp_path / "out"
    process = flwr(
        "run",
        ".",
        "--stream",
        "--federation-config",
        "num-supernodes=5 client-resources-num-cpus=1 init-args-num-cpus=2",
        "--run-config",
        f'overrides="{OVERRIDES}" out="{out}"',
    )
    log = process.stdout + process.stderr
    assert (out / "summary.json").exists(), log[-5000:]
    status = json.loads(flwr("ls", "--format", "json").stdout)["runs"][0]["status"]
    assert status == "finished:completed"

    before = torch.get_num_threads()
    config = {"config": "simulations/configs/quickstart.yaml", "overrides": OVERRIDES}
    experiment = build_experiment(config)
    federation = Federation(experiment.protocol)
    LocalEngine(federation, experiment.shards).run(2)
    torch.set_num_threads(before)
    state = load_file(out / "state.safetensors")
    for name, tensor in federation.tensors().items():
        assert torch.equal(state[f"w/{name}"], tensor), name
    for name, tensor in federation.psi_tensors().items():
        assert torch.equal(state[f"psi/{name}"], tensor), name
