"""`flwr run .` as a user types it: Flower packs the app into a FAB and simulates it, without a network."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from places import ROOT
from safetensors.torch import load_file

from fedpart import Federation
from fedpart.engines import LocalEngine
from simulations.flower.config import build_experiment

OVERRIDES = "rounds=2 clients=5 cohort=3 samples=2 training_points=100 evaluate_every=2"
FLWR = """
from flwr.cli import local_superlink
from flwr.cli.app import app
local_superlink.LOCAL_SUPERLINK_STARTUP_TIMEOUT = 300.0  # it is 15 s, too few where other tests run
app()
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def flwr(tmp_path):
    """Runs the flwr command in a home of its own, and stops the SuperLink that it leaves behind."""
    tools, app = Path(sys.executable).parent, tmp_path / "app"
    for name in ("fedpart", "server", "client", "simulations"):
        shutil.copytree(ROOT / name, app / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, app / name)
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-c", FLWR, *arguments],
            cwd=app,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    yield call
    processes = subprocess.run(["ps", "-axww", "-o", "pid=,command="], capture_output=True, text=True).stdout
    for line in processes.splitlines():
        if "flower-superlink" in line and environment["FLWR_HOME"] in line:
            os.kill(int(line.split()[0]), signal.SIGTERM)


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
