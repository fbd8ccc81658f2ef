"""How often a round waits for the device: what is read is read together, at its end."""

import sys

import pytest
import torch
from problems import augmentation, chain_net, settings, shards
from torch import Tensor

from fedpart import Federation, LocalSettings, Protocol, Task
from fedpart.engines import LocalEngine

ON_THE_DEVICE = {"engines", "federated", "methods", "partition", "task", "training", "trees.py", "updates"}
READS = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__")


@pytest.fixture
def reads(monkeypatch):
    """Where a tensor's numbers are asked for, by what does not compute on the CPU, or on a copy there."""
    seen = []

    def spied(kept):
        def spy(*args, **kwargs):
            place = sys._getframe(1)
            while place.f_code.co_name in ("__torch_function__", "spy"):  # a mode's, of the grouped way
                place = place.f_back
            path = place.f_code.co_filename.partition("/fedpart/")[2]
            if path.partition("/")[0] in ON_THE_DEVICE:
                seen.append(f"{path}:{place.f_lineno}")
            return kept(*args, **kwargs)

        return spy

    for name in READS:
        monkeypatch.setattr(Tensor, name, spied(getattr(Tensor, name)))
    for name in ("equal", "allclose"):
        monkeypatch.setattr(torch, name, spied(getattr(torch, name)))
    return seen


ONE, SEVERAL = LocalSettings(), LocalSettings(batch_size=3)  # steps


@pytest.mark.parametrize(
    ("execution", "local"),
    [("loop", ONE), ("loop", SEVERAL), ("grouped", ONE), ("grouped", SEVERAL), ("fused", ONE)],
)
def test_a_plain_round_reads_the_device_three_times(execution, local, reads):
    task = Task(chain_net(), transforms=[augmentation()], samples=2)
    protocol = Protocol(task, settings(6, cohort=6, local=local))
    engine = LocalEngine(Federation(protocol), shards([8] * 6), execution=execution)
    engine.run(4)  # in some of the first rounds it is looked whether clients may be computed together
    reads.clear()
    engine.run_round()
    assert 1 <= len(reads) <= 3, reads


def test_an_evaluation_reads_the_device_once(reads):
    task = Task(chain_net(), transforms=[augmentation()], samples=2)
    federation, (data,) = Federation(Protocol(task, settings(3))), shards([600])
    federation.evaluate(data)
    reads.clear()
    federation.evaluate(data)
    assert len(reads) == 1, reads
