"""What a round costs on a card, beside a bare loop and pfl, in one table within six minutes.

``python -m benchmarks.card.rounds`` builds nothing, and needs torch, numpy and fedpart alone; pfl is timed
where it can be imported. The rows that are missed most come first; what there was no time for is told.
``--device cpu --quick`` tries it, on small workloads, in seconds.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy
import torch
from torch import Tensor

from benchmarks.rounds.bare import BareFedAvg, BarePartitioned, LocalWork, build
from benchmarks.rounds.ours import make_protocol, make_shards
from benchmarks.rounds.timed import seconds
from benchmarks.rounds.workloads import WORKLOADS, Workload
from fedpart import Dataset, Federation, Protocol
from fedpart.engines import LocalEngine

NAMES = ("W1", "W2", "W3", "W4", "P1")
WAYS = ("loop", "fused", "grouped")
SMALL = replace(WORKLOADS["W3"], examples=8, samples=2)
QUICK = {"model": "digits_cnn", "clients": 3, "cohort": 1, "examples": 4, "samples": 1}
SHARE = 15.0  # seconds that a row may take, at most, after its first two rounds


class CardLoop(LocalWork):
    """The bare loop's work where its data are, in float32 or under autocast to bfloat16."""

    bf16 = False

    def order(self, job: Any, examples: int) -> Tensor:
        return torch.randperm(examples, device=self.sums[0].device)

    def _gradients(self, job: Any, step: int, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.model.loss(x, y, self.uniform(job, step))
        return torch.autograd.grad(loss, self._wanted)


def engine_on(
    workload: Workload, shards: Sequence[Dataset], execution: str, device: str, precision: str = "fp32"
) -> LocalEngine:
    """At the start of a run."""
    made = make_protocol(workload, precision=precision, channels_last=False)
    protocol = Protocol(made.task, replace(made.settings, device=device))
    return LocalEngine(Federation(protocol), shards, execution=execution)


def distance(workload: Workload, execution: str, device: str, rounds: int = 3) -> tuple[float, float]:
    """From the loop on the CPU: of w, relative to how far w has come, and of psi, its largest."""
    shards = make_shards(workload)
    loop, other = engine_on(workload, shards, "loop", "cpu"), engine_on(workload, shards, execution, device)
    first = loop.federation.w.clone()
    for engine in (loop, other):
        engine.run(rounds)
    w, psi = loop.federation.w, loop.federation.psi
    off = (other.federation.w.cpu() - w).norm() / (w - first).norm()
    return off.item(), (other.federation.psi.cpu() - psi).abs().max().item()


def bare(workload: Workload, shards: Sequence[Dataset], device: str, precision: str) -> Callable[[], object]:
    with torch.device(device):
        data = [(shard.inputs.to(device), shard.targets.to(device)) for shard in shards]
        work = CardLoop(build(workload), data, workload)
        work.bf16 = precision == "bf16"
        loop = BarePartitioned(work) if workload.partitioned else BareFedAvg(work)
    protocol, number = make_protocol(workload), iter(range(1, 10**9))

    def round() -> None:
        loop.round([(client, protocol.chunk(client)) for client in protocol.cohort(next(number))])

    return round


def pfl(workload: Workload, device: str) -> Callable[[], object]:
    os.environ["PFL_PYTORCH_DEVICE"] = device
    from benchmarks.rounds.pfl_fedavg.timed import TimedPfl

    timed = TimedPfl(workload, device)
    return lambda: timed.run(1)


Made = Callable[[], Callable[[], object]]


def ways(workload: Workload, device: str, others: bool) -> Iterator[tuple[str, str, Made]]:
    """What is timed on a workload, with its precision, and what makes its round; first the rest, then
    executions that are asked for by name.
    """
    shards = make_shards(workload)
    for precision in ("fp32", "bf16"):
        if not others:
            yield "bare loop", precision, partial(bare, workload, shards, device, precision)
        for way in WAYS if others else ("auto",):
            engine = partial(engine_on, workload, shards, way, device, precision)
            yield f"fedpart {way}", precision, lambda made=engine: made().run_round
    if not (others or workload.partitioned):
        yield "pfl", "fp32", partial(pfl, workload, device)


def measured(make: Callable[[], Callable[[], object]], device: str, rounds: int, until: float) -> list[Any]:
    """Median, least, peak memory and a note, of rounds after two, until a time at the latest."""

    def run() -> None:
        run_round()
        if on_card:
            torch.accelerator.synchronize(device)

    on_card, cuda = device != "cpu", device.startswith("cuda")
    try:
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        run_round = make()
        times = [seconds(run) for _ in range(2)]
        until = min(until, time.perf_counter() + SHARE)
        while len(times) < 2 + rounds and (len(times) == 2 or time.perf_counter() + times[-1] < until):
            times.append(seconds(run))
    except Exception as error:  # fused clients take one step; no pfl
        return [None, None, None, " ".join(str(error).split())[:60]]
    peak = torch.cuda.max_memory_allocated(device) / 1e6 if cuda else None
    return [statistics.median(times[2:]), min(times[2:]), peak, ""]


def show(*cells: Any) -> None:
    texts = ["" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else cell for cell in cells]
    print("{:9}{:17}{:10}{:>9}{:>9}{:>9}  {}".format(*texts).rstrip(), flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--workload", default=",".join(NAMES), help="separated by commas")
    asked.add_argument("--rounds", type=int, default=20, help="timed rounds of each row, at most")
    asked.add_argument("--budget", type=float, default=330.0, help="seconds, after which no row is begun")
    asked.add_argument("--quick", action="store_true", help="small workloads, a round each")
    options = asked.parse_args()
    began, device = time.perf_counter(), options.device
    until, quick = began + options.budget, QUICK if options.quick else {}
    torch.set_num_threads(1)  # the card computes
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    card = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor() or device
    print(f"{card}; torch {torch.__version__}, numpy {numpy.__version__}, python {platform.python_version()}")
    print(f"{time.strftime('%Y-%m-%d %H:%M')}; seconds of a round, peak memory in MB; fp32 without TF32")
    for way in WAYS:
        try:
            w, psi = distance(replace(SMALL, **quick), way, device)
            told = f"w {w:.2g} of its way from the CPU's, psi {psi:.2g}"
        except Exception as error:  # the rows are wanted all the same
            told = " ".join(str(error).split())
        print(f"three rounds of a small W3, {way}: {told}", flush=True)
    show("workload", "what", "precision", "median", "least", "peak", "")
    for others, name in product((False, True), options.workload.split(",")):
        for what, precision, make in ways(replace(WORKLOADS[name], **quick), device, others):
            row = [None, None, None, "no time"]
            if time.perf_counter() < until:
                row = measured(make, device, 1 if quick else options.rounds, until)
            show(name, what, precision, *row)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
