"""Everything works beside a user's own ``server.py`` and ``client.py``, Flower's commonest file names."""

import os
import subprocess
import sys
import tomllib

import pytest
from places import ROOT

from simulations.deployment import control

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("own", ["server.py"], indirect=True)
def test_ray_runs_beside_them(own):
    (own / "config.yaml").write_text(CONFIG)
    command = "from simulations.cli.main import main; main()"
    python(own, "-c", command, "run", "config.yaml", "--engine", "ray", "--out", "out")
    assert (own / "out" / "summary.json").exists()


def test_they_import_the_strategy_and_the_client_app(own):
    assert "0 of the 2 configured clients are connected" in python(own, "-c", RUN_IT)


def test_the_bundle_of_a_deployment_names_what_is_installed():
    components = tomllib.loads(control._APP.format(version=1, serverapp=control.SERVER_APP))["tool"]["flwr"][
        "app"
    ]["components"]
    for place in components.values():
        module, _, name = place.partition(":")
        python(
            ROOT.parent, "-c", f"from {module} import {name}; import sys; sys.exit('server' in sys.modules)"
        )
