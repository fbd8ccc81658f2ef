"""What an installation without extras lacks says so in a sentence; `import fedpart` loads none of it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import refusals
import torch
from command_line import fedpart, refused
from fake_runs import small_config, write_run
from places import ROOT
from torch import nn

from fedpart import Dataset
from fedpart.data import load_splits
from fedpart.extras import MissingExtra, need
from fedpart.loggers import LOGGERS
from fedpart.methods.evidence.laplace import diagonal_laplace
from fedpart.nn.likelihoods import LIKELIHOODS
from fedpart.nn.models import lora_text
from simulations.cli import deployment
from simulations.pretraining.text import pretrain_text
from simulations.results.pictures.figures import _can_draw, drawn
from simulations.results.report.page import write_report
from simulations.running import export

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LIBRARIES = {  # as they are imported
    "cryptography", "datasets", "httpx", "jinja2", "laplace", "matplotlib", "mlflow", "numba", "onnx",
    "onnxscript", "optuna", "peft", "prometheus_client", "psutil", "pyarrow", "tensorboard", "torchmetrics",
    "transformers", "wandb",
}  # fmt: skip
LATE = sorted(LIBRARIES | {"flwr", "ray", "pandas", "scipy", "sklearn", "torchvision"})
IMPORTS = f"""
import json, sys, torch
import fedpart
fedpart.load
from torch import nn
def loaded(): return sorted(set({LATE}) & set(sys.modules))
before = loaded()
shard = (torch.rand(6, 3), torch.arange(6) % 2)
fedpart.federate(fedpart.Task(nn.Linear(3, 2), samples=1), [shard] * 3, rounds=1, validation=shard)
print(json.dumps([before, loaded()]))
"""


def measured(likelihood, outputs, targets):
    return lambda: LIKELIHOODS[likelihood]().measures(outputs, targets)


def test_every_extra_is_asked_for_in_one_sentence(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES] + sorted(LIBRARIES):
        monkeypatch.setitem(sys.modules, name, None)
    data = Dataset(torch.rand(2, 2), torch.tensor([0, 1]))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "rows.parquet").write_bytes(b"")
    write_run(tmp_path / "run", small_config(rounds=1), [0.5])
    p, labels = torch.rand(4, 3), torch.tensor([0, 1, 2, 0])
    rows = [
        ("deployment", lambda: need(*deployment._EXTRA), "psutil"),
        ("hf", lambda: load_splits("hf:csv", tmp_path), "datasets"),
        ("laplace", lambda: diagonal_laplace(nn.Linear(2, 2), data, 1.0), "laplace"),
        ("measures", measured("classification", p, labels), "torchmetrics"),
        ("measures", measured("ensemble", p[:, None], labels), "torchmetrics"),
        ("measures", measured("multilabel", p, p.round()), "torchmetrics"),
        ("measures", measured("token_classification", p[None], labels[None]), "torchmetrics"),
        ("mlflow", LOGGERS["mlflow"], "mlflow"),
        ("onnx", lambda: export._onnx(nn.Linear(3, 2), p, p, tmp_path / "file"), "onnxscript"),
        ("parquet", lambda: load_splits("table", tmp_path / "rows.parquet", target="y"), "pyarrow"),
        ("pictures", lambda: write_report(tmp_path / "run"), "jinja2"),
        ("prometheus", LOGGERS["prometheus"], "prometheus_client"),
        ("tensorboard", LOGGERS["tensorboard"], "tensorboard"),
        ("text", lambda: lora_text(2, None, str(tmp_path)), "peft"),
        ("text", pretrain_text, "transformers"),
        ("wandb", LOGGERS["wandb"], "wandb"),
    ]
    refusals.check(
        (f"{i} {extra}", call, ImportError, re.escape(f' needs {library}: pip install "fedpart[{extra}]".'))
        for i, (extra, call, library) in enumerate(rows)
    )
    sentence = 'fedpart search needs optuna: pip install "fedpart[search]".'
    refused(fedpart("search", "search_quickstart"), sentence)
    assert {extra for extra, *_ in rows} | {"all", "kernels", "search"} == set(EXTRAS)


def test_a_library_that_cannot_be_imported_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("from math import no_such_name")
    monkeypatch.syspath_prepend(tmp_path)
    sentence = r"fedpart search cannot use broken as it is here \(.*no_such_name.*\): pip install --upgrade"
    with pytest.raises(MissingExtra, match=sentence):
        need("broken", "fedpart search", "search")


def test_without_matplotlib_no_picture_is_drawn_and_the_reason_is_said_once(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    _can_draw.cache_clear()
    plot = drawn(lambda: [Path("picture.png")])
    assert plot() == plot() == []
    assert capsys.readouterr().err == 'Drawing pictures needs matplotlib: pip install "fedpart[pictures]".\n'
    monkeypatch.undo()
    _can_draw.cache_clear()
    assert plot() == [Path("picture.png")]


def test_all_are_all_others():
    (line,) = EXTRAS["all"]
    assert set(re.fullmatch(r"fedpart\[(.+)\]", line)[1].split(",")) == set(EXTRAS) - {"all"}


@pytest.mark.slow
def test_import_fedpart_and_a_dense_network_load_none_of_the_heavy_libraries():
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[], []]  # after what federate() prints
