"""What a round costs, by workload and engine, beside a bare PyTorch loop, stock Flower and apple's pfl.

``python -m benchmarks.rounds.bench --workload W1,W2 --rounds 20`` or, on a GPU, ``--device cuda``. All is
computed in this process with one thread, but for engines that have processes of their own. After two rounds
to warm up, the engines of a workload compute a round each, in turn; Flower, which cannot wait between rounds,
all of its rounds at the end. Flower is timed if it is asked for. The rest needs torch, numpy and fedpart
alone."""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy
import torch

from benchmarks.rounds.bare import BareFedAvg, BarePartitioned, LocalWork, build
from benchmarks.rounds.ours import make_protocol, make_shards
from benchmarks.rounds.workloads import WORKLOADS, Workload
from fedpart import Dataset, Federation, Protocol
from fedpart.engines import LocalEngine

WAYS = ("loop", "fused", "grouped")
ENGINES = ("bare", "auto", *WAYS, "workers2", "flower", "pfl")
USUAL = (("bare", "auto", "pfl"), WAYS)  # the rows that are missed most come first
SMALL = replace(WORKLOADS["W3"], examples=8, samples=2)
QUICK = {"model": "digits_cnn", "clients": 3, "cohort": 1, "examples": 4, "samples": 1}
WARM_UP = 2  # rounds


def engine_on(
    workload: Workload, shards: Sequence[Dataset], device: str, task: dict[str, Any], **options: Any
) -> LocalEngine:
    """At the start of a run; ``task``: options of the task, ``options`` of the engine."""
    made = make_protocol(workload, **{"channels_last": False, **task})
    protocol = Protocol(made.task, replace(made.settings, device=device))
    return LocalEngine(Federation(protocol), shards, **options)


def distance(workload: Workload, execution: str, device: str, rounds: int = 3) -> tuple[float, float]:
    """From the loop on the CPU: of w, relative to how far w has come, and of psi, its largest."""
    shards = make_shards(workload)
    loop = engine_on(workload, shards, "cpu", {}, execution="loop")
    other = engine_on(workload, shards, device, {}, execution=execution)
    first = loop.federation.w.clone()
    for engine in (loop, other):
        engine.run(rounds)
    w, psi = loop.federation.w, loop.federation.psi
    off = (other.federation.w.cpu() - w).norm() / (w - first).norm()
    return off.item(), (other.federation.psi.cpu() - psi).abs().max().item()


def bare(workload: Workload, shards: Sequence[Dataset], device: str, precision: str) -> Callable[[], object]:
    with torch.device(device):
        data = [(shard.inputs.to(device), shard.targets.to(device)) for shard in shards]
        work = LocalWork(build(workload), data, workload)
        work.bf16 = precision == "bf16"
        loop = BarePartitioned(work) if workload.partitioned else BareFedAvg(work)
    protocol, number = make_protocol(workload), iter(range(1, 10**9))

    def round() -> None:
        loop.round([(client, protocol.chunk(client)) for client in protocol.cohort(next(number))])

    return round


@dataclass
class Contender:
    """A row of the table."""

    workload: Workload
    engine: str
    precision: str
    times: list[float] = field(default_factory=list)  # seconds of rounds, those to warm up among them
    peak: float | None = None  # MB of the card's memory, most while it warmed up
    note: str = ""

    def start(self, shards: Sequence[Dataset], device: str, rounds: int) -> None:
        """Set up and warm up; a note tells why it cannot be."""
        self._device, cuda = device, device.startswith("cuda")
        try:
            if self.engine == "flower":
                from benchmarks.rounds.flower_fedavg import simulate

                self.times, self.note = simulate(self.workload, WARM_UP + rounds), "all its rounds at once"
                return
            if cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
            self._run_round = self._made(shards, device)
            for _ in range(WARM_UP):
                self.run()
            self.peak = (torch.cuda.max_memory_allocated(device) - before) / 1e6 if cuda else None
        except Exception as error:  # fused clients take one step; no pfl
            self.times, self.note = [], " ".join(str(error).split())[:60]

    def _made(self, shards: Sequence[Dataset], device: str) -> Callable[[], object]:
        if self.engine == "bare":
            return bare(self.workload, shards, device, self.precision)
        if self.engine == "pfl":
            os.environ["PFL_PYTORCH_DEVICE"] = device
            from benchmarks.rounds.pfl_fedavg import TimedPfl

            return TimedPfl(self.workload, device).run_round
        options: dict[str, Any] = {"workers": 2} if self.engine == "workers2" else {"execution": self.engine}
        channels_last = device == "cpu" and self.engine != "grouped"  # as the bare loop, where that can be
        task = {"precision": self.precision, "channels_last": channels_last}
        return engine_on(self.workload, shards, device, task, **options).run_round

    def run(self) -> None:
        start = time.perf_counter()
        self._run_round()
        if self._device != "cpu":
            torch.accelerator.synchronize(self._device)
        self.times.append(time.perf_counter() - start)

    def row(self) -> list[Any]:
        """Median, quartiles' distance over it, least, peak memory and the note."""
        times = self.times[WARM_UP:]
        if not times:
            return [None, None, None, self.peak, self.note or "no time"]
        low, median, high = statistics.quantiles([*times, *times], n=4, method="inclusive")
        return [median, (high - low) / median, min(times), self.peak, self.note]


def contenders(workload: Workload, engines: Sequence[str]) -> list[Contender]:
    """The rows of a workload: those of ours, and the bare loop, in both precisions."""
    left_out = {"pfl"} if workload.partitioned else set[str]()
    if workload.partitioned or workload.affine is not None or workload.server != "adam":
        left_out.add("flower")  # its app is plain FedAvg with Adam, without augmentation
    ours = ("bare", "auto", *WAYS)
    rows = [(engine, precision) for precision in ("fp32", "bf16") for engine in engines]
    rows = [row for row in rows if row[0] not in left_out and (row[0] in ours or row[1] == "fp32")]
    return [Contender(workload, *row) for row in rows]


def measure(rows: Sequence[Contender], device: str, rounds: int, until: float) -> None:
    """Time rounds of one workload in turn, until a moment at the latest."""
    shards = make_shards(rows[0].workload) if rows else []
    for row in sorted(rows, key=lambda row: row.engine == "flower"):  # it ends what others have of Ray
        if time.perf_counter() < until:
            row.start(shards, device, rounds)
    stepped = [row for row in rows if row.times and row.engine != "flower"]
    for _ in range(rounds):
        for row in stepped:
            if len(row.times) == WARM_UP or time.perf_counter() + row.times[-1] < until:
                row.run()
        stepped = [*stepped[1:], *stepped[:1]]  # nobody always follows the same neighbour


def show(*cells: Any) -> None:
    texts = ["" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else cell for cell in cells]
    print("{:9}{:10}{:10}{:>9}{:>9}{:>9}{:>9}  {}".format(*texts).rstrip(), flush=True)


def named(known: Sequence[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}, but {', '.join(known)}")
        return text.split(",")

    return names


def main(device: str = "cpu") -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--device", default=device)
    asked.add_argument("--workload", type=named([*WORKLOADS]), default=[*WORKLOADS], help="with commas")
    asked.add_argument("--engine", type=named(ENGINES), help="with commas; usually all that run in here")
    asked.add_argument("--rounds", type=int, default=20, help="timed rounds of each row, at most")
    asked.add_argument("--budget", type=float, default=330.0, help="seconds, after which no round is begun")
    asked.add_argument("--quick", action="store_true", help="small workloads, a round each")
    options = asked.parse_args()
    began, device = time.perf_counter(), options.device
    until, quick = began + options.budget, QUICK if options.quick else {}
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of processes that engines start
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor() or device
    print(f"{name}; torch {torch.__version__}, numpy {numpy.__version__}, python {platform.python_version()}")
    print(f"{time.strftime('%Y-%m-%d %H:%M')}; seconds of a round, peak memory in MB; fp32 without TF32")
    for way in WAYS if device != "cpu" or quick else ():
        try:
            w, psi = distance(replace(SMALL, **quick), way, device)
            told = f"w {w:.2g} of its way from the CPU's, psi {psi:.2g}"
        except Exception as error:  # the rows are wanted all the same
            told = " ".join(str(error).split())
        print(f"three rounds of a small W3, {way}: {told}", flush=True)
    show("workload", "engine", "precision", "median", "spread", "least", "peak", "")
    engines = USUAL if options.engine is None else (options.engine,)
    groups = [*product(engines, options.workload)]
    for place, (group, workload) in enumerate(groups):
        rows = contenders(replace(WORKLOADS[workload], **quick), group)
        now = time.perf_counter()  # each group gets its part of the time that is left
        measure(rows, device, 1 if quick else options.rounds, now + (until - now) / (len(groups) - place))
        for row in rows:
            show(workload, row.engine, row.precision, *row.row())
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
