"""Kills and a hostile client change no bit of a deployed run."""

import base64
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from abuse import ABUSES
from hostile_node import Hostile
from killed import EXPERIMENT, children, kill
from places import ROOT

from simulations.config.load import ExperimentConfig
from simulations.deployment.keys import CA, CERTIFICATE_KEY, NODE_KEY, SECRET, TOKEN, make_keys
from simulations.deployment.up import Deployment, complete, watch
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import CHECKPOINT, STATE, read_metrics
from simulations.running.run import run_experiment


def read_of_processes():
    """What the command lines and environments of all processes of a federation say."""
    read = b""
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):  # it has just ended
            files = (Path(f"/proc/{process.pid}/{name}") for name in ("cmdline", "environ"))
            read += b"".join(file.read_bytes() for file in files)
    return read


def secrets(keys):
    """Everything of a federation's keys that nobody else may read, as it may be written."""
    files = [file for name in (TOKEN, SECRET, NODE_KEY, CERTIFICATE_KEY) for file in keys.glob(f"*/{name}")]
    for secret in {file.read_bytes() for file in files}:
        yield from (secret, secret.hex().encode(), base64.b64encode(secret), base64.urlsafe_b64encode(secret))
        yield from secret.splitlines()[1:-1]  # of a key


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Of two clients, for one run after another; in the end nothing secret stands in its logs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        folder = tmp_path_factory.mktemp("federation")
        with Deployment(EXPERIMENT["clients"], folder / "private", folder / "logs") as running:
            yield running
            hidden = set(secrets(running.keys))
    logs = b"".join(file.read_bytes() for file in running.processes.logs.iterdir())
    assert logs and not [secret for secret in hidden if secret in logs]


KEPT = {"method": "partitioned+scaffold", "clip": None}  # variates, in files of the clients
MINE = {"method": "partitioned+ditto", "evaluation": "clients", "evaluate_every": 1}


@pytest.mark.deployment
@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, KEPT, MINE], ids=["partitioned", "scaffold", "ditto"])
def test_a_worker_and_its_parent_are_killed_in_a_round_and_the_weights_are_those_of_a_calm_run(
    federation, tmp_path, changes
):
    config = ExperimentConfig.from_dict({**EXPERIMENT, "rounds": 3, "samples": 160, **changes})
    out = tmp_path / "out"
    killed, seen, over = [], [], threading.Event()

    def strike():
        for client in range(2):
            while len(read_metrics(out)) == client and not over.wait(0.01):
                pass
            parent = federation.processes.pid(f"clientapp-{client}")
            (worker,) = children(parent)
            process = psutil.Process(worker)
            before = process.cpu_times().user
            while process.cpu_times().user < before + 0.1:  # it has begun with its message
                time.sleep(0.01)
            seen.append(read_of_processes())
            os.kill([worker, parent][client], signal.SIGKILL)
            killed.append((parent, worker))

    killer = threading.Thread(target=strike)
    killer.start()
    run = federation.control.start(deployed_run_config(config, out, False))
    ended = watch(federation, run, lambda text: None)
    over.set()
    killer.join()
    assert ended.status == "finished:completed"
    hidden = set(secrets(federation.keys))
    (first, dead), (ended, orphan) = killed
    parent = federation.processes.pid("clientapp-0")
    assert parent == first and dead not in children(parent)
    assert not psutil.pid_exists(orphan) and not psutil.pid_exists(ended)
    assert len(seen) == 2 and b"flower.workarounds.superlink" in seen[0] and len(hidden) > 20
    assert not [secret for secret in hidden for text in seen if secret in text]
    assert not any(line["skipped"] for line in read_metrics(out))
    run_experiment(config, tmp_path / "local")
    scores, calm = (
        [line.get("client_nll") for line in read_metrics(run)] for run in (out, tmp_path / "local")
    )
    assert scores == calm
    assert (out / STATE).read_bytes() == (tmp_path / "local" / STATE).read_bytes()


@pytest.mark.deployment
@pytest.mark.slow
def test_a_killed_server_goes_back_to_its_checkpoint_and_clients_to_the_variates_of_then(
    federation, tmp_path
):
    """It is killed after round 3 and goes on from round 2, when clients have already kept what 3 left."""
    config = ExperimentConfig.from_dict({**EXPERIMENT, **KEPT, "rounds": 5, "checkpoint_every": 2})
    out, said, reached, over = tmp_path / "out", [], [], threading.Event()

    def kill_after_round_3():
        while len(read_metrics(out)) < 3 and not over.wait(0.01):
            pass
        reached.append((len(read_metrics(out)), kill(federation, "ServerApp")))

    killer = threading.Thread(target=kill_after_round_3)
    killer.start()
    run = complete(federation, deployed_run_config(config, out, False), said.append)
    over.set()
    killer.join()
    assert run.status == "finished:completed" and reached == [(3, True)]
    assert "".join(said).count("goes on from its checkpoint") == 1
    assert [line["round"] for line in read_metrics(out)] == [1, 2, 3, 4, 5]
    run_experiment(config, tmp_path / "calm")
    assert (out / STATE).read_bytes() == (tmp_path / "calm" / STATE).read_bytes()


@pytest.mark.deployment
@pytest.mark.slow
def test_a_hostile_client_and_kills_of_the_serverapp_change_no_bit(federation, tmp_path):
    config = ExperimentConfig.from_dict({**EXPERIMENT, "rounds": 3, "checkpoint_every": 100})
    out, said, reached = tmp_path / "out", [], []

    keys = federation.keys
    make_keys(keys, 3)
    assert federation.control.register() == (3, 0)
    hostile = Hostile(ABUSES, federation.address, keys / "superlink" / CA, keys / "supernode-2")
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
    log = (federation.processes.logs / "superlink.log").read_text()
    assert "client-2" in log and "is refused, with status 400" in log
    assert not any(line["skipped"] for line in read_metrics(out))
    run_experiment(config, tmp_path / "calm")
    assert (out / STATE).read_bytes() == (tmp_path / "calm" / STATE).read_bytes()
