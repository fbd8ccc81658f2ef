"""Flower's own commands: files of the user's in a bundle, and a run that is the local engine's."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from flwr_command import flwr_command
from places import ROOT
from safetensors.torch import load_file

from fedpart import Federation
from fedpart.engines import LocalEngine
from simulations.deployment import control
from simulations.flower.config import build_experiment

CONFIG = """
data: digits
clients: 2
cohort: 2
chunks: [0.5, 0.5]
rounds: 2
samples: 1
training_points: 40
validation_points: 20
test_points: 20
hyperparameters: {dropout: null}
workers: 1
"""
SERVER = """
import torch
from flwr.serverapp import ServerApp

from fedpart import Federation, FederationSettings, Protocol, Task
from fedpart.flower import FedPart, NodesError

app = ServerApp()


@app.main()
def main(grid, context):
    settings = FederationSettings(clients=2, cohort=2, chunks=(0.5, 0.5), node_timeout=0.0)
    try:
        FedPart(Federation(Protocol(Task(torch.nn.Linear(4, 2)), settings))).run(grid, 2)
    except NodesError as error:
        print(error)
"""
CLIENT = """
from fedpart.flower import make_client_app

app = make_client_app(lambda run_config: None)
"""
RUN_IT = """
import client, server
from types import SimpleNamespace

class Nobody:
    get_nodes = send_and_receive = lambda self: []

server.app(Nobody(), SimpleNamespace(run_config={}))
"""


def python(folder, *arguments):
    """Run Python in a folder, as a user does; what it has said."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["server.py", "server/__init__.py"])
def own(tmp_path, request):
    """A folder with a user's own server, a file or a folder, and client."""
    for name, text in ((request.param, SERVER), ("client.py", CLIENT)):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("own", ["server.py"], indirect=True)
def test_ray_runs_beside_them(own):
    (own / "config.yaml").write_text(CONFIG)
    command = "from simulations.cli.main import main; main()"
    python(own, "-c", command, "run", "config.yaml", "--engine", "ray", "--out", "out")
    assert (own / "out" / "summary.json").exists()


@pytest.mark.slow
def test_they_import_the_strategy_and_the_client_app(own):
    assert "0 of the 2 configured clients are connected" in python(own, "-c", RUN_IT)


@pytest.mark.slow
def test_the_bundle_of_a_deployment_names_what_is_installed():
    bundle = tomllib.loads(control._APP.format(version=1))
    places = bundle["tool"]["flwr"]["app"]["components"].values()
    load = "".join(f"from {place.replace(':', ' import ')}; " for place in places)
    python(ROOT.parent, "-c", f"{load}import sys; sys.exit('server' in sys.modules)")


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
    federation = "num-supernodes=5 client-resources-num-cpus=1 init-args-num-cpus=2"
    more = ("--federation-config", federation, "--run-config", f'overrides="{OVERRIDES}" out="{out}"')
    process = flwr("run", ".", "--stream", *more)
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
    expected = {f"w/{name}": tensor for name, tensor in federation.tensors().items()}
    expected |= {f"psi/{name}": tensor for name, tensor in federation.psi_tensors().items()}
    state = load_file(out / "state.safetensors")
    assert not [name for name, tensor in expected.items() if not torch.equal(state[name], tensor)]
