"""What a round costs on a GPU, in each execution and precision, and how far its numbers are from a CPU's.

A row for each workload, execution and precision: median seconds of a round, and the peak of the device's
memory. Before them a row for each execution with the distance of w and psi from those of the loop
on the CPU, after three rounds of a small W3 in fp32; Adam makes much of small gradients' last digits.

    python -m benchmarks.costs.on_device --device cuda --workload W1,W2,W3,W4 --rounds 20
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import torch

from benchmarks.rounds.ours import make_protocol, make_shards
from benchmarks.rounds.workloads import WORKLOADS, Workload
from benchmarks.script import parser, seconds, tell, tell_versions
from fedpart import Federation, Protocol
from fedpart.engines import LocalEngine

WAYS = {
    "loop": {"channels_last": True},
    "fused": {"channels_last": True},
    "vectorised": {"channels_last": False},
}
SMALL = replace(WORKLOADS["W3"], examples=8, samples=2)


def engine(workload: Workload, execution: str, device: str, precision: str = "fp32") -> LocalEngine:
    """At the start of a run.

    Raises:
        ValueError: the execution cannot compute this workload.
    """
    made = make_protocol(workload, precision=precision, **WAYS[execution])
    protocol = Protocol(made.task, replace(made.settings, device=device))
    return LocalEngine(Federation(protocol), make_shards(workload), execution=execution)


def distance(workload: Workload, execution: str, device: str, rounds: int = 3) -> tuple[float, float]:
    """From the loop on the CPU: of w, relative to how far w has come, and of psi, its largest."""
    made = make_protocol(workload, **WAYS[execution])  # noise follows the memory format
    here = LocalEngine(Federation(made), make_shards(workload))
    there = engine(workload, execution, device)
    start = here.federation.w.clone()
    for one in (here, there):
        for _ in range(rounds):
            one.run_round()
    w, psi = there.federation.w.cpu(), there.federation.psi.cpu()
    come = (here.federation.w - start).norm()
    return ((w - here.federation.w).norm() / come).item(), (psi - here.federation.psi).abs().max().item()


def times(made: LocalEngine, rounds: int, device: str) -> list[float]:
    """Seconds of rounds, after two to warm up."""

    def waited() -> None:
        made.run_round()
        if device != "cpu":
            torch.accelerator.synchronize(device)

    return [seconds(waited) for _ in range(2 + rounds)][2:]


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--workload", default="W1", help="names, separated by commas")
    asked.add_argument("--rounds", type=int, default=20)
    given = asked.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for execution in WAYS:
        w, psi = distance(SMALL, execution, given.device)
        tell(execution=execution, distance_w=w, distance_psi=psi)
    for name in given.workload.split(","):
        for execution in WAYS:
            for precision in ("fp32", "bf16"):
                if given.device != "cpu":
                    torch.cuda.reset_peak_memory_stats()
                try:
                    made = engine(WORKLOADS[name], execution, given.device, precision)
                    found = times(made, given.rounds, given.device)
                except Exception as error:  # fused clients take one step
                    tell(workload=name, execution=execution, precision=precision, refused=str(error))
                    continue
                peak = None if given.device == "cpu" else torch.cuda.max_memory_allocated() / 2**20
                row = {"seconds": round(statistics.median(found), 4), "least": round(min(found), 4)}
                tell(workload=name, execution=execution, precision=precision, **row, peak_mb=peak)
    tell_versions(device=given.device, rounds=given.rounds)


if __name__ == "__main__":
    main()
