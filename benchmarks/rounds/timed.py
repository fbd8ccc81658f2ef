"""The process of one engine in ``bench``: a line of JSON asks for rounds, a line answers with times.

The standard library is all it needs, for baselines run in environments of their own.
"""

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from benchmarks.script import seconds


class Unavailable(Exception):
    """The engine cannot run the workload here; one sentence."""


class TimedEngine(ABC):
    """An engine with its state, whose rounds are timed."""

    @abstractmethod
    def run(self, rounds: int) -> dict[str, Any]:
        """Compute the next rounds; ``seconds`` of each, and whatever else is known of each."""

    @abstractmethod
    def passes(self) -> Callable[[], object] | None:
        """The model's own passes over the last round's batches, alone, to be timed; None if not known."""


def serve(start: Callable[[Mapping[str, Any]], TimedEngine], *peers: str) -> None:
    """Answer requests until the input ends: first the arguments of ``start``, then rounds or passes."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries must not print between the answers

    def answer(data: Mapping[str, Any]) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    try:
        engine = start(json.loads(sys.stdin.readline()))
    except Unavailable as reason:
        return answer({"unavailable": str(reason)})
    answer({"peer": ", ".join(f"{name} {version(name)}" for name in peers) or None})
    for line in sys.stdin:
        request = json.loads(line)
        if "run" in request:
            answer(engine.run(request["run"]))
        else:
            passes = engine.passes()
            answer({"seconds": None if passes is None else seconds(passes)})
