"""The three files that CONTRIBUTING.md shows are run as they stand there."""

import re

import pytest
import torch
from places import ROOT
from torch import nn

from fedpart import Task, federate
from fedpart.data import load_splits
from fedpart.methods import METHODS, FederatedMethod

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"```python\n# file: (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))


@pytest.fixture
def own_project(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_contributing_shows_a_method_a_hyperparameter_and_a_data_set():
    assert set(FILES) == {"clipped.py", "brightness.py", "stripes.py"}


def test_the_three_files_work_together(own_project):
    splits = load_splits("stripes:load_stripes")
    from brightness import Brightness

    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 2))
    task = Task(net, transforms=[Brightness()], samples=2)
    shards = [splits.train.subset(range(i, 400, 10)) for i in range(10)]
    result = federate(task, shards, rounds=20, cohort=5, validation=splits.validation, evaluate_every=20)
    assert result.metrics[-1].val_accuracy > 0.9
    assert set(result.psi) == {"brightness.range [%]"}
    assert abs(result.psi["brightness.range [%]"] - 5) > 0.1, "the range is learned"


def test_the_clipped_method_moves_no_further_than_its_norm(own_project, monkeypatch):
    splits = load_splits("stripes:load_stripes")
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 2))
    shards = [splits.train.subset(range(i, 400, 10)) for i in range(10)]
    plain = federate(Task(net, samples=1), shards, rounds=1, method="fedavg", seed=1)
    norms, combine = [], FederatedMethod.combine

    def watched(method, federation, total):
        norms.append(float((total.parts[1] / total.weights[1]).norm()))
        combine(method, federation, total)

    from clipped import ClippedFedAvg

    METHODS.register("spy")(ClippedFedAvg)
    monkeypatch.setattr(FederatedMethod, "combine", watched)
    clipped = federate(
        Task(net, samples=1), shards, rounds=1, method="spy", method_options={"norm": 1e-3}, seed=1
    )
    assert norms == [pytest.approx(1e-3, rel=1e-4)]
    assert not torch.equal(plain.state.w, clipped.state.w)
