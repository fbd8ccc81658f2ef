"""``bench`` runs this in an environment of pfl's own: ``python -m benchmarks.rounds.pfl_fedavg``."""

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.rounds.timed import Run, Unavailable, serve


def _start(arguments: Mapping[str, Any]) -> Run:
    try:
        import torch

        from benchmarks.rounds.pfl_fedavg.timed import TimedPfl
        from benchmarks.rounds.workloads import Workload
    except ImportError as error:
        remedy = "make pfl's environment as docs/guides/benchmarks.md says"
        raise Unavailable(f"{sys.executable} cannot run it ({error}); {remedy}.") from error
    torch.set_num_threads(1)
    ours, theirs = (version.partition("+")[0] for version in (arguments["torch"], torch.__version__))
    if ours != theirs:
        raise Unavailable(f"pfl's environment has torch {theirs}, this one {ours}: install the same there.")
    return TimedPfl(Workload.from_dict(arguments["workload"])).run


if __name__ == "__main__":
    serve(_start, "pfl")
