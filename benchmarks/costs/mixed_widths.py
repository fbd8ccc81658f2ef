"""What a round costs whose clients have networks of several widths, beside rounds of one width each.

All are the in-process engine in this process, one thread, the same clients in the same rounds, one round of
each in turn. A row for the mixture and for each width; then ``of_mean``, the median over rounds of the
mixture's seconds over the single widths' in the same round, weighted by how many clients of the cohort have
which.

    python -m benchmarks.costs.mixed_widths --workload W5 --rounds 10
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace

import torch

from benchmarks.rounds.ours import make_protocol, make_shards
from benchmarks.rounds.workloads import WORKLOADS, Workload
from benchmarks.script import in_turn, parser, tell, tell_versions
from fedpart import Federation
from fedpart.engines import LocalEngine

WIDTHS = {"widths": WORKLOADS["W5"].widths, "width_shares": WORKLOADS["W5"].width_shares}


def engine(workload: Workload) -> LocalEngine:
    """At the start of a run."""
    return LocalEngine(Federation(make_protocol(workload)), make_shards(workload))


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--workload", default="W5", choices=list(WORKLOADS))
    asked.add_argument("--rounds", type=int, default=10, help="at least two")
    given = asked.parse_args()
    torch.set_num_threads(1)
    mixed = replace(WORKLOADS[given.workload], **WIDTHS)
    single = {width: replace(mixed, widths=(width,), width_shares=(1.0,)) for width in mixed.widths}
    engines = {"mixed": engine(mixed), **{f"width {width:g}": engine(one) for width, one in single.items()}}
    found = in_turn({name: one.run_round for name, one in engines.items()}, given.rounds)
    protocol, ratios = engines["mixed"].federation.protocol, []
    for number, seconds in enumerate(found["mixed"]):
        cohort = protocol.cohort(number + 2)  # the first one has warmed up
        widths = [mixed.widths[protocol.architectures[client]] for client in cohort]
        ratios.append(seconds / statistics.fmean(found[f"width {width:g}"][number] for width in widths))
    for name, times in found.items():
        tell(clients=name, seconds=round(statistics.median(times), 4))
    low, median, high = (round(value, 3) for value in statistics.quantiles(ratios, n=4, method="inclusive"))
    tell(of_mean=median, quartiles=[low, high], busy=round(os.getloadavg()[0], 1))
    tell_versions(workload=given.workload, rounds=given.rounds)


if __name__ == "__main__":
    main()
