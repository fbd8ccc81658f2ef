"""A plain round stays short: files that it enters, lines beside computing, and waits for the device.

What is read of a device is read together, at the end of the round.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from problems import augmentation, chain_net, settings, shards
from torch import Tensor

import fedpart
from fedpart import Federation, LocalSettings, Protocol, Task
from fedpart.engines import LocalEngine

FOLDER = Path(fedpart.__file__).parent
ORCHESTRATION = {"engines", "federated", "methods", "partition", "training", "updates"}


def lines_of(call):
    """The numbers of the lines that a call runs, by file of the library."""
    lines = defaultdict(set)

    def trace(frame, event, _argument):
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(FOLDER):
            return None
        if event == "line":
            lines[path.relative_to(FOLDER)].add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def test_a_warmed_plain_round_is_as_short_as_the_design_says():
    task = Task(chain_net(), transforms=[augmentation()], samples=2)
    engine = LocalEngine(Federation(Protocol(task, settings(6))), shards([8] * 6))
    engine.run(2)
    lines = lines_of(engine.run_round)
    told = (FOLDER.parent / "docs" / "architecture.md").read_text()
    files, count = map(
        int, re.search(r"enters at most (\d+) files and\s+runs at most (\d+) lines", told).groups()
    )
    assert Path("engines/local.py") in lines and Path("federated/federation.py") in lines
    assert len(lines) <= files
    assert sum(len(ran) for path, ran in lines.items() if path.parts[0] in ORCHESTRATION) <= count


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


@pytest.mark.quick(2)
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
