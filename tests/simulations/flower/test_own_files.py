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
import sys
from types import SimpleNamespace
{bundle}
assert not {{"server", "client"}} & sys.modules.keys(), "a deployment needs none in the working directory"

class Nobody:
    get_nodes = send_and_receive = lambda self: []

for folder in ("file", "folder"):
    sys.path[0] = folder
    import client, server
    assert f"/{{folder}}/server" in server.__file__
    server.app(Nobody(), SimpleNamespace(run_config={{}}))
    del sys.modules["client"], sys.modules["server"]
"""


@pytest.mark.slow
def test_they_import_the_strategy_and_the_client_app_and_a_deployment_what_is_installed(tmp_path):
    """A server of one's own is a file or a folder."""
    for name in ("file/server.py", "folder/server/__init__.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(SERVER)
        (tmp_path / name.partition("/")[0] / "client.py").write_text(CLIENT)
    places = tomllib.loads(control._APP.format(version=1))["tool"]["flwr"]["app"]["components"].values()
    bundle = "\n".join("from {} import {}".format(*place.split(":")) for place in places)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN_IT.format(bundle=bundle)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("0 of the 2 configured clients are connected") == 2


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
    federation = "num-supernodes=5 client-resources-num-cpus=1 init-args-num-cpus=1"
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
