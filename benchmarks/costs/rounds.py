"""What a round costs in one process: with clients of several widths, and on a GPU.

python -m benchmarks.costs.rounds widths --workload W5 --rounds 10
python -m benchmarks.costs.rounds device --device cuda --workload W1,W2,W3,W4 --rounds 20
"""

import os
import statistics
from collections.abc import Callable
from dataclasses import replace

import torch
import typer

from benchmarks.rounds.ours import make_protocol, make_shards
from benchmarks.rounds.workloads import WORKLOADS, Workload
from benchmarks.script import in_turn, seconds, tell, tell_versions
from fedpart import Federation, Protocol
from fedpart.engines import LocalEngine

MIXED = {"widths": WORKLOADS["W5"].widths, "width_shares": WORKLOADS["W5"].width_shares}
WAYS = {
    "loop": {"channels_last": True},
    "fused": {"channels_last": True},
    "grouped": {"channels_last": False},
}
SMALL = replace(WORKLOADS["W3"], examples=8, samples=2)

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


def engine_of(workload: Workload) -> LocalEngine:
    return LocalEngine(Federation(make_protocol(workload)), make_shards(workload))


@app.command()
def widths(workload: str = "W5", rounds: int = 10) -> None:
    """Of clients that have networks of several widths, in turn with rounds of one width each.

    ``of_mean`` is the median over rounds of the mixture's seconds over the single widths' in the same round,
    weighted by how many clients of the cohort have which.
    """
    torch.set_num_threads(1)
    mixed = replace(WORKLOADS[workload], **MIXED)
    single = {width: replace(mixed, widths=(width,), width_shares=(1.0,)) for width in mixed.widths}
    engines = {"mixed": engine_of(mixed)}
    engines |= {f"width {width:g}": engine_of(alone) for width, alone in single.items()}
    times = in_turn({name: engine.run_round for name, engine in engines.items()}, rounds)
    protocol, ratios = engines["mixed"].federation.protocol, []
    for number, took in enumerate(times["mixed"]):
        cohort = protocol.cohort(number + 2)  # the first one has warmed up
        shares = [mixed.widths[protocol.architectures[client]] for client in cohort]
        ratios.append(took / statistics.fmean(times[f"width {width:g}"][number] for width in shares))
    for name, row in times.items():
        tell(clients=name, seconds=round(statistics.median(row), 4))
    low, median, high = (round(value, 3) for value in statistics.quantiles(ratios, n=4, method="inclusive"))
    tell(of_mean=median, quartiles=[low, high], busy=round(os.getloadavg()[0], 1))
    tell_versions(workload=workload, rounds=rounds)


def engine_on(workload: Workload, execution: str, device: str, precision: str = "fp32") -> LocalEngine:
    """At the start of a run."""
    made = make_protocol(workload, precision=precision, **WAYS[execution])
    protocol = Protocol(made.task, replace(made.settings, device=device))
    return LocalEngine(Federation(protocol), make_shards(workload), execution=execution)


def distance(workload: Workload, execution: str, device: str, rounds: int = 3) -> tuple[float, float]:
    """From the loop on the CPU: of w, relative to how far w has come, and of psi, its largest."""
    protocol = make_protocol(workload, **WAYS[execution])  # noise follows the memory format
    loop = LocalEngine(Federation(protocol), make_shards(workload))
    other = engine_on(workload, execution, device)
    first = loop.federation.w.clone()
    for engine in (loop, other):
        engine.run(rounds)
    w, psi = loop.federation.w, loop.federation.psi
    off = (other.federation.w.cpu() - w).norm() / (w - first).norm()
    return off.item(), (other.federation.psi.cpu() - psi).abs().max().item()


def waited(engine: LocalEngine, device: str) -> Callable[[], None]:
    """A round until the device has computed it."""

    def run() -> None:
        engine.run_round()
        if device != "cpu":
            torch.accelerator.synchronize(device)

    return run


@app.command()
def device(device: str = "cuda", workload: str = "W1", rounds: int = 20) -> None:
    """On a GPU, in each execution and precision: seconds of a round, and the peak of the device's memory.

    Before them a row for each execution with the distance of w and psi from those of the loop on the CPU,
    after three rounds of a small W3 in fp32; Adam makes much of small gradients' last digits.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for execution in WAYS:
        w, psi = distance(SMALL, execution, device)
        tell(execution=execution, distance_w=w, distance_psi=psi)
    for name in workload.split(","):
        for execution, precision in ((way, kind) for way in WAYS for kind in ("fp32", "bf16")):
            what = {"workload": name, "execution": execution, "precision": precision}
            if device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            try:
                run = waited(engine_on(WORKLOADS[name], execution, device, precision), device)
                times = [seconds(run) for _ in range(2 + rounds)][2:]
            except Exception as error:  # fused clients take one step
                tell(**what, refused=str(error))
                continue
            peak = None if device == "cpu" else torch.cuda.max_memory_allocated() / 2**20
            row = {"seconds": round(statistics.median(times), 4), "least": round(min(times), 4)}
            tell(**what, **row, peak_mb=peak)
    tell_versions(device=device, rounds=rounds)


if __name__ == "__main__":
    app()
