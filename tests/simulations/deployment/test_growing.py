"""A federation whose SuperNodes leave and come at random: rounds go on, and the SuperLink stays as small."""

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from forked import Forked
from killed import EXPERIMENT, meanwhile
from places import ROOT

from simulations.config.load import ExperimentConfig
from simulations.deployment.up import ENVIRONMENT, Deployment, complete
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import read_metrics

NODES, ROUNDS = 4, 12
LONG = [int(number) for number in os.environ.get("GROWING", "").split(",") if number]
CONFIG = {**EXPERIMENT, "clients": NODES, "cohort": 2, "rounds": ROUNDS, "evaluate_every": 100}
CONFIG |= {"on_client_error": "skip", "min_replies": 1, "round_timeout": 20.0, "split": {"alpha": 10.0}}
MORE = 64 * 2**20  # bytes that the SuperLink may take beyond what it took after a few rounds


@pytest.mark.deployment
@pytest.mark.slow
def test_rounds_go_on_while_supernodes_leave_and_come(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config, out, rounds, sizes = ExperimentConfig.from_dict(CONFIG), tmp_path / "out", {}, []
    choose = random.Random(0)
    with Deployment(NODES, tmp_path, tmp_path / "logs") as federation:
        superlink = psutil.Process(federation.processes.pid("superlink"))

        def disturb(over):
            """After every other round one leaves, in mid-round; it is started again after some seconds."""
            while not over.wait(0.2):
                done = len(read_metrics(out)) if out.exists() else 0
                if done and done % 2 == 0 and done not in rounds:
                    rounds[done] = choose.randrange(NODES)
                    sizes.append(superlink.memory_info().rss)
                    with suppress(ProcessLookupError):  # it is away
                        os.kill(federation.processes.pid(f"supernode-{rounds[done]}"), signal.SIGKILL)

        with meanwhile(disturb):
            run = complete(federation, deployed_run_config(config, out, False), lambda text: None)
        assert run.completed, run.outcome
        federation.wait_for(f"client-{client}" for client in range(NODES))
    lines = read_metrics(out)
    assert [line["round"] for line in lines] == [*range(1, ROUNDS + 1)]
    assert sum(line["stepped"] for line in lines) >= ROUNDS // 2
    refused = {category for line in lines for category in line["refused"]}
    assert refused <= {"client_error", "no_answer", "late"}
    back = 0
    for done, client in rounds.items():
        later = [line for line in lines[done:] if client in line["cohort"]]
        back += any(client not in {skip["client"] for skip in line["skipped"]} for line in later)
    assert len(rounds) >= 3 and back >= 1, (rounds, lines)
    assert max(sizes) - sizes[0] < MORE, sizes


@pytest.mark.deployment
@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="set GROWING=nodes,cohort,seconds, and have 0.1 GiB for each node")
def test_a_large_federation_for_a_while(tmp_path, monkeypatch):
    nodes, cohort, seconds = LONG
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(ROOT / "tests"))))
    for name, value in ENVIRONMENT.items():  # of the process that the others are forked from
        monkeypatch.setenv(name, value)
    more = {"clients": nodes, "cohort": cohort, "rounds": 10**6, "training_points": 600}
    more |= {"round_timeout": 120.0}  # seconds; a client is slow when it is first asked
    config, out = ExperimentConfig.from_dict(CONFIG | more), tmp_path / "out"
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    federation, stopped, sizes, left = Deployment(nodes, tmp_path, tmp_path / "logs"), [], [], {}
    federation.processes = Forked(tmp_path / "logs", tmp_path / "homes", ENVIRONMENT | {"PATH": path})
    begun = time.monotonic()
    with federation:
        processes, choose, online = federation.processes, random.Random(0), time.monotonic() - begun
        superlink, away = psutil.Process(processes.pid("superlink")), {}
        own = (processes.pid(name) for name in ("supernode-0", "clientapp-0"))
        memory = [psutil.Process(pid).memory_full_info().uss >> 20 for pid in own]
        print(f"{nodes} online after {online:.0f} s; MiB of a SuperNode and its executor", memory)

        def disturb(over):
            end = time.monotonic() + seconds
            while not over.wait(2.0) and time.monotonic() < end:
                done = len(read_metrics(out)) if out.exists() else 0
                sizes.append((done, superlink.memory_info().rss >> 20))
                for name in [name for name, (until, _) in away.items() if until < time.monotonic()]:
                    processes.start(name, away.pop(name)[1])
                name = f"supernode-{choose.randrange(nodes)}"
                if done and name not in away:
                    away[name] = time.monotonic() + choose.uniform(5.0, 60.0), processes.leave(name)
                    left.setdefault(int(name.rpartition("-")[2]), done)
            stopped.append(signal.SIGTERM)

        with meanwhile(disturb):
            complete(federation, deployed_run_config(config, out, False), lambda text: None, stopped)
    lines = read_metrics(out)
    skipped = [{skip["client"] for skip in line["skipped"]} for line in lines]
    answered = [(line["round"], set(line["cohort"]) - who) for line, who in zip(lines, skipped, strict=True)]
    back = sum(any(client in of for round, of in answered if round > done) for client, done in left.items())
    stepped, asked = sum(line["stepped"] for line in lines), sum(len(line["cohort"]) for line in lines)
    print(f"{len(lines)} rounds, {stepped} stepped, {len(left)} nodes left, {back} were heard again")
    print(f"skipped {sum(map(len, skipped))} of {asked}")
    print("SuperLink [rounds, MiB]", sizes[:: max(1, len(sizes) // 12)])
    print("seconds a round", sorted(line["seconds"] for line in lines)[len(lines) // 2])
    assert back and max(size for _, size in sizes) - sizes[len(sizes) // 3][1] < MORE >> 20
