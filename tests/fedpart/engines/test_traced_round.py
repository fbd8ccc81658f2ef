"""A plain round stays short: how many files it enters, and how many lines it runs besides computing."""

import re
import sys
from collections import defaultdict
from pathlib import Path

from problems import augmentation, chain_net, shards

import fedpart
from fedpart import Federation, FederationSettings, Protocol, Task
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
    settings = FederationSettings(clients=6, cohort=6)
    engine = LocalEngine(Federation(Protocol(task, settings)), shards([8] * 6))
    engine.run(2)
    lines = lines_of(engine.run_round)
    told = (FOLDER.parent / "docs" / "architecture.md").read_text()
    files, count = map(
        int, re.search(r"enters at most (\d+) files and\s+runs at most (\d+) lines", told).groups()
    )
    assert Path("engines/local.py") in lines and Path("federated/federation.py") in lines
    assert len(lines) <= files
    assert sum(len(ran) for path, ran in lines.items() if path.parts[0] in ORCHESTRATION) <= count
