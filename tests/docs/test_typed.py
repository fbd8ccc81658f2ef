"""What a downstream project's type checker makes of fedpart: mypy --strict on files of the documentation."""

import re
import runpy
import shutil
import subprocess
import sys

import pytest
import torch
from documents import DOCS
from tiny import tiny

from simulations.running.run import run_experiment

FILES = sorted((DOCS / "typed").glob("*.py"))
MISSPELT = {
    "federate(net, clients, chuncks=(0.5, 0.5))": '"chuncks" for "federate"; did you mean "chunks"?',
    "fit(net, clients[0], iteratons=2)": '"iteratons" for "fit"; did you mean "iterations"?',
    "federate(net, clients, cohort='all')": 'incompatible type "str"; expected "int"',
    "federate(net, clients, evaluation='client')": "incompatible type \"Literal['client']\"",
}
DOWNSTREAM = """
import torch
from torch import nn
from fedpart import federate, fit

net, clients = nn.Linear(2, 2), [(torch.rand(4, 2), torch.ones(4).long())]
"""


@pytest.mark.slow
def test_strict_mypy_passes_on_them_and_finds_a_misspelt_setting(tmp_path):
    """From a folder outside of the checkout, so that fedpart's types are found by its py.typed."""
    assert len(FILES) >= 3
    for file in FILES:
        shutil.copy(file, tmp_path)
    (tmp_path / "misspelt.py").write_text(DOWNSTREAM + "\n".join(MISSPELT) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = dict(re.findall(r"^(\w+\.py:\d+): error: (.*)$", done.stdout, re.M))
    first = len(DOWNSTREAM.splitlines()) + 1
    assert done.returncode == 1 and list(found) == [
        f"misspelt.py:{first + place}" for place in range(len(MISSPELT))
    ], done.stdout + done.stderr
    for message, wanted in zip(found.values(), MISSPELT.values(), strict=True):
        assert wanted in message


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_they_run(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    defined = runpy.run_path(str(file))
    if "result" in defined:
        assert defined["result"].test_nll > 0
    else:
        run_experiment(tiny(rounds=1), "run")
        assert defined["classes"]("run", torch.rand(3, 1, 28, 28)).shape == (3,)
