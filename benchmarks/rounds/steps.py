"""The process of one engine in ``fedpart bench``: a line of JSON asks for rounds, a line answers with times.

The standard library is all it needs, for baselines run in environments of their own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Protocol


class Unavailable(Exception):
    """The engine cannot run the workload here; one sentence."""


class Steps(Protocol):
    """An engine with its state."""

    def run(self, rounds: int) -> dict[str, Any]:
        """Run rounds; ``seconds`` of each, and whatever else is known of each."""
        ...

    def passes(self) -> float | None:
        """Seconds of the model's own forward and backward passes over the last round's batches, alone.

        None if this process does not know.
        """
        ...


def serve(start: Callable[[Mapping[str, Any]], Steps], *peers: str) -> None:
    """Answer requests until the input ends.

    The first line holds the arguments of ``start``; it is answered with the versions of ``peers``, the
    packages that are measured, as ``{"peer": "flwr 1.41.0, ray 2.55.1"}``, or with ``unavailable`` and the
    reason. Then ``{"run": n}`` is answered with the result of :meth:`Steps.run`, and ``{"passes": true}``
    with ``{"seconds": ...}``.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(
        sys.stderr.fileno(), sys.stdout.fileno()
    )  # what libraries print must not come between the answers

    def answer(data: Mapping[str, Any]) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    try:
        steps = start(json.loads(sys.stdin.readline()))
    except Unavailable as reason:
        return answer({"unavailable": str(reason)})
    answer({"peer": ", ".join(f"{name} {version(name)}" for name in peers) or None})
    for line in sys.stdin:
        request = json.loads(line)
        if "run" in request:
            answer(steps.run(request["run"]))
        else:
            answer({"seconds": steps.passes()})
