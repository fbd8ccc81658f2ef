"""What a round costs with clients of several widths.

python -m benchmarks.costs.rounds --workload W5 --rounds 10
"""

import os
import statistics
from dataclasses import replace

import torch
import typer

from benchmarks.rounds.ours import make_protocol, make_shards
from benchmarks.rounds.workloads import WORKLOADS, Workload
from benchmarks.script import in_turn, tell, tell_versions
from fedpart import Federation
from fedpart.engines import LocalEngine

MIXED = {"widths": WORKLOADS["W5"].widths, "width_shares": WORKLOADS["W5"].width_shares}

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


if __name__ == "__main__":
    app()
