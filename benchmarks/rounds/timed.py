"""The process of one engine in ``bench``: a line of JSON asks for rounds, a line answers with times.

The standard library is all it needs, for baselines run in environments of their own.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Unavailable(Exception):
    """The engine cannot run the workload here; one sentence."""


Run = Callable[[int], dict[str, Any]]
"""Computes so many further rounds: ``seconds`` of each, and whatever else is known of each."""


def serve(start: Callable[[Mapping[str, Any]], Run], *peers: str) -> None:
    """Answer requests until the input ends: first the arguments of ``start``, then numbers of rounds."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries must not print between the answers

    def answer(data: Mapping[str, Any]) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    try:
        run = start(json.loads(sys.stdin.readline()))
    except Unavailable as reason:
        return answer({"unavailable": str(reason)})
    answer({"peer": ", ".join(f"{name} {version(name)}" for name in peers) or None})
    for line in sys.stdin:
        answer(run(json.loads(line)["run"]))
