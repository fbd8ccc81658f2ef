"""The wheel in an environment of its own, as a user has it who has no checkout."""

import json
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import yaml
from flwr_command import flwr_command
from installed import UV, build_wheel, call
from places import ROOT
from tiny import TINY

import fedpart

GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
STRIPES = re.search(r"# file: stripes\.py\n(.*?)```", GUIDE, re.DOTALL)
WHERE = """
import fedpart, simulations
open("{}", "w").write(fedpart.__file__ + simulations.__file__)
"""
PYPROJECT = """
[project]
name = "mine"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["fedpart"]

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"

[tool.flwr.app.config]
rounds = 1
out = ""
"""
TASK = """
from functools import cache
from types import SimpleNamespace

import torch
from torch import nn

from fedpart import ConcreteDropout, FederationSettings, Protocol, Task
from fedpart.data import load_splits


@cache
def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), ConcreteDropout(0.1), nn.Linear(8, 10))
    digits = load_splits("digits").train
    settings = FederationSettings(clients=2, cohort=2, chunks=(0.5, 0.5), max_examples=40)
    shards = [digits.subset(range(client, 40, 2)) for client in range(2)]
    return SimpleNamespace(protocol=Protocol(Task(net, samples=1), settings), shards=shards)
"""
SERVER = """
from pathlib import Path

from flwr.serverapp import ServerApp
from task import build

import fedpart
from fedpart import Federation
from fedpart.flower import FedPart

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    FedPart(Federation(build().protocol)).run(grid, config["rounds"])
    Path(config["out"]).write_text(fedpart.__file__)
"""
CLIENT = """
from fedpart.flower import make_client_app
from task import build

app = make_client_app(lambda run_config: build())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Python of an environment with the wheel. All else is this environment's, less what is editable in it:
    of a folder that a .pth names, further .pth files are not read."""
    venv = tmp_path_factory.mktemp("environment") / "venv"
    quiet = {"check": True, "capture_output": True}
    subprocess.run([UV, "venv", "--offline", "-p", sys.executable, venv], **quiet)
    made = venv / "bin" / "python"
    subprocess.run([UV, "pip", "install", "--offline", "--no-deps", "-p", made, wheel], **quiet)
    here = sysconfig.get_paths()["purelib"]
    purelib = Path(here).relative_to(sys.prefix)
    (venv / purelib / "others.pth").write_text(here)
    for script in Path(sys.executable).parent.glob("fl*w*r*"):  # flwr, flower-superlink, ...
        text = script.read_text().replace(str(Path(sys.executable).parent), str(made.parent))
        (made.parent / script.name).write_text(text)
        (made.parent / script.name).chmod(0o755)
    return made


def test_it_has_the_library_and_the_command_line_alone(wheel):
    with zipfile.ZipFile(wheel) as file:
        folders = {name.partition("/")[0] for name in file.namelist()}
    assert folders - {f"fedpart-{fedpart.__version__}.dist-info"} == {"fedpart", "simulations"}


@pytest.mark.slow
def test_fedpart_runs_a_configuration_with_a_loader_beside_it_from_anywhere(python, tmp_path):
    for name in ("mine", "here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "stripes.py").write_text(STRIPES[1] + WHERE.format(tmp_path / "where"))
    text = yaml.safe_dump({**TINY, "data": "stripes:load_stripes", "rounds": 2, "workers": 2})
    (tmp_path / "mine" / "my.yaml").write_text(text)
    command = python.parent / "fedpart"
    assert "quickstart" in call(tmp_path, command, "configs")
    call(tmp_path / "here", command, "run", "../mine/my.yaml", "--out", "run")
    call(tmp_path / "there", command, "run", "--resume", "../here/run", "--set", "rounds=3")
    assert json.loads((tmp_path / "here" / "run" / "summary.json").read_text())["rounds"] == 3
    assert (tmp_path / "where").read_text().count(str(python.parents[1])) == 2


@pytest.mark.slow
@pytest.mark.deployment
def test_flwr_runs_a_folder_of_ones_own_with_server_and_client(python, tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    files = {"pyproject.toml": PYPROJECT, "task.py": TASK, "server.py": SERVER, "client.py": CLIENT}
    for name, text in files.items():
        (app / name).write_text(text)
    with flwr_command(app, python, tmp_path / "flwr") as flwr:
        resources = "num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=1"
        out = tmp_path / "out"
        said = flwr("run", ".", "--stream", "--federation-config", resources, "--run-config", f'out="{out}"')
        assert out.exists(), (said.stdout + said.stderr)[-5000:]
        assert str(python.parents[1]) in out.read_text()  # the wheel's fedpart, and not the checkout's
        assert json.loads(flwr("ls", "--format", "json").stdout)["runs"][0]["status"] == "finished:completed"
