"""A federation whose SuperNodes leave and come at random: rounds go on, and the SuperLink stays as small."""

import os
import random
import signal
import threading
from contextlib import suppress

import psutil
import pytest
from killed import EXPERIMENT
from places import ROOT

from simulations.config.load import ExperimentConfig
from simulations.deployment.up import Deployment, complete
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import read_metrics

NODES, ROUNDS = 4, 12
CONFIG = {**EXPERIMENT, "clients": NODES, "cohort": 2, "rounds": ROUNDS, "evaluate_every": 100}
CONFIG |= {"on_client_error": "skip", "min_replies": 1, "round_timeout": 20.0, "split": {"alpha": 10.0}}
MORE = 64 * 2**20  # bytes that the SuperLink may take beyond what it took after a few rounds


@pytest.mark.deployment
@pytest.mark.slow
def test_rounds_go_on_while_supernodes_leave_and_come(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config, out, rounds, sizes = ExperimentConfig.from_dict(CONFIG), tmp_path / "out", {}, []
    over, choose = threading.Event(), random.Random(0)
    with Deployment(NODES, tmp_path, tmp_path / "logs") as federation:
        superlink = psutil.Process(federation.processes.pid("superlink"))

        def disturb():
            """After every other round one leaves, in mid-round; it is started again after some seconds."""
            while not over.wait(0.2):
                done = len(read_metrics(out)) if out.exists() else 0
                if done and done % 2 == 0 and done not in rounds:
                    rounds[done] = choose.randrange(NODES)
                    sizes.append(superlink.memory_info().rss)
                    with suppress(ProcessLookupError):  # it is away
                        os.kill(federation.processes.pid(f"supernode-{rounds[done]}"), signal.SIGKILL)

        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            run = complete(federation, deployed_run_config(config, out, False), lambda text: None)
        finally:
            over.set()
            disturber.join()
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
