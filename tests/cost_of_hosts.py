"""What a round costs on several hosts: ``PYTHONPATH=.:tests python -m cost_of_hosts``, as root.

The hosts are namespaces of this machine, a Ray actor on each. Of every round: seconds, seconds of the hosts'
processors, and bytes between hosts, where replies meet in the driver, and where hosts send their sums.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from dataclasses import replace

from flower_rounds import load, rounds_over, run_config
from hosts import hosts, start_ray, surroundings
from places import ROOT

from benchmarks.rounds.ours import make_protocol
from benchmarks.rounds.workloads import WORKLOADS
from fedpart import Federation
from simulations.ray.grid import RayGrid


def drive(address, workload, rounds, ways):
    """The rounds, in a process of the first host; it stops before and after those that count."""
    relay = RayGrid.relay
    with RayGrid(load, workload.clients, run_config(workload), address=address) as grid:
        for way in ways:
            RayGrid.relay = relay if way == "sums" else lambda *given: None
            federation = Federation(make_protocol(workload))
            run = rounds_over(grid, federation)
            run()
            _told({})
            begun = time.perf_counter()
            for _ in range(rounds):
                run()
            seconds = (time.perf_counter() - begun) / rounds
            digest = hashlib.sha256(federation.w.numpy().tobytes()).hexdigest()[:8]
            _told({"way": way, "seconds": seconds, "bits": digest})


def _told(what):
    print(json.dumps(what), flush=True)
    input()


def measure(computers, workload, rounds, ways):
    """What the rounds cost on these hosts, for each way."""
    words = "--address", start_ray(computers), "--workload", workload.name, "--rounds", rounds
    words += "--cohorts", workload.cohort, "--ways", ",".join(ways)
    command = sys.executable, "-m", "cost_of_hosts", *words
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = surroundings(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    driver = subprocess.Popen(computers[0].command(*command), env=environment, **pipes)
    before = [], 0
    while line := driver.stdout.readline():
        now = [host.group.seconds() for host in computers], sum(host.sent() for host in computers)
        if told := json.loads(line):
            used = [(end - begin) / rounds for begin, end in zip(before[0], now[0], strict=True)]
            yield told | {"processors": used, "bytes": (now[1] - before[1]) / rounds}
        before = now
        print(file=driver.stdin, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="W1")
    parser.add_argument("--cohorts", default="10,100,1000")
    parser.add_argument("--hosts", default="1,2,3")
    parser.add_argument("--cores", type=float, help="of each host, where control groups bound it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ways", default="replies,sums", help="where replies meet")
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    ways = options.ways.split(",")
    for cohort in map(int, options.cohorts.split(",")):
        given = WORKLOADS[options.workload]
        workload = replace(given, cohort=cohort, clients=max(cohort, given.clients))
        if options.address:
            drive(options.address, workload, options.rounds, ways)
            continue
        for count in map(int, options.hosts.split(",")):
            with hosts(count, options.cores) as computers:
                for row in measure(computers, workload, options.rounds, ways):
                    print(json.dumps({"cohort": cohort, "hosts": count} | row), flush=True)


if __name__ == "__main__":
    main()
