"""A federation with a hostile client whose ServerApp is killed: it ends with the bytes of a calm one."""

import threading

import pytest
from places import ROOT

from benchmarks.checks.abuse import ABUSES
from benchmarks.checks.crash_deployed import EXPERIMENT, kill
from benchmarks.checks.hostile_node import Hostile
from simulations.config.load import ExperimentConfig
from simulations.deployment.keys import CA, make_keys
from simulations.deployment.up import Deployment, complete
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import CHECKPOINT, STATE, read_metrics
from simulations.running.run import run_experiment


@pytest.mark.deployment
@pytest.mark.slow
def test_a_hostile_client_and_kills_of_the_serverapp_change_no_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config = ExperimentConfig.from_dict({**EXPERIMENT, "rounds": 3, "checkpoint_every": 100})
    out, said, reached = tmp_path / "out", [], []

    with Deployment(2, tmp_path, tmp_path / "logs") as federation:
        make_keys(federation.keys, 3)
        assert federation.control.register() == (3, 0)
        hostile = Hostile(
            ABUSES, federation.address, federation.keys / "superlink" / CA, federation.keys / "supernode-2"
        )
        hostile.start()
        over = threading.Event()

        def kill_between_rounds_0_and_1_and_after_round_1():
            for rounds in range(2):
                while not over.wait(0.01):
                    if (out / CHECKPOINT).exists() and len(read_metrics(out)) >= rounds:
                        reached.append(len(read_metrics(out)))
                        assert kill(federation, "ServerApp")
                        break

        killer = threading.Thread(target=kill_between_rounds_0_and_1_and_after_round_1)
        killer.start()
        run = complete(federation, deployed_run_config(config, out, False), said.append)
        for thread, stop in ((killer, over), (hostile, hostile.over)):
            stop.set()
            thread.join()

    text = "".join(said)
    assert run.status == "finished:completed", text
    assert reached[0] == 0 and reached[1] >= 1
    assert text.count("goes on from its checkpoint") == 2
    assert hostile.failed is None, hostile.failed
    statuses = {status for _, status in hostile.answers}
    assert {400, 429} <= statuses and not [one for one in hostile.answers if one[1] >= 500], hostile.answers
    log = (tmp_path / "logs" / "superlink.log").read_text()
    assert "client-2" in log and "is refused, with status 400" in log
    assert not any(line["skipped"] for line in read_metrics(out))
    run_experiment(config, tmp_path / "calm")
    assert (out / STATE).read_bytes() == (tmp_path / "calm" / STATE).read_bytes()
