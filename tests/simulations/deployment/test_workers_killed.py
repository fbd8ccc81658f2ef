"""One federation of two clients, run after run: kills and a hostile client change no bit; whom it refuses."""

import base64
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from abuse import ABUSES
from command_line import fedpart
from hostile_node import Hostile
from killed import EXPERIMENT, children, kill, meanwhile
from places import importing
from sizes import TWO
from stock import bundle

from simulations.config.load import ExperimentConfig
from simulations.deployment.control import Control
from simulations.deployment.keys import CA, CERTIFICATE_KEY, NODE_KEY, SECRET, TOKEN, make_keys
from simulations.deployment.processes import free_ports, supernode
from simulations.deployment.up import Deployment, complete, watch
from simulations.errors import RunError
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import CHECKPOINT, STATE, read_metrics, read_summary
from simulations.running.run import run_experiment

HEADER = 4096  # bytes of a message besides its numbers, at most


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
        patch.setenv("PYTHONPATH", importing(__file__))
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
@pytest.mark.parametrize("changes", [KEPT, MINE], ids=["scaffold", "ditto"])
def test_a_worker_and_its_parent_are_killed_in_a_round_and_the_weights_are_those_of_a_calm_run(
    federation, tmp_path, changes
):
    config = ExperimentConfig.from_dict({**EXPERIMENT, "rounds": 3, "samples": 160, **changes})
    out, local, killed, seen = tmp_path / "out", tmp_path / "local", [], []

    def strike(over):
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

    with meanwhile(strike):
        run = federation.control.start(deployed_run_config(config, out, False))
        ended = watch(federation, run, lambda text: None)
    assert ended.status == "finished:completed"
    hidden = set(secrets(federation.keys))
    (first, dead), (ended, orphan) = killed
    parent = federation.processes.pid("clientapp-0")
    assert parent == first and dead not in children(parent)
    assert not psutil.pid_exists(orphan) and not psutil.pid_exists(ended)
    assert len(seen) == 2 and b"flower.workarounds.superlink" in seen[0] and len(hidden) > 20
    assert not [secret for secret in hidden for text in seen if secret in text]
    assert not any(line["skipped"] for line in read_metrics(out))
    run_experiment(config, local)
    scores, calm = ([line.get("client_nll") for line in read_metrics(run)] for run in (out, local))
    assert scores == calm
    assert (out / STATE).read_bytes() == (local / STATE).read_bytes()


@pytest.mark.deployment
@pytest.mark.slow
def test_a_hostile_client_and_kills_of_the_serverapp_change_no_bit(federation, tmp_path):
    """It is killed before the first round, and after round 3: it goes back to round 2, and clients to the
    variates of then."""
    config = ExperimentConfig.from_dict({**EXPERIMENT, **KEPT, "rounds": 5, "checkpoint_every": 2})
    out, said, reached, keys = tmp_path / "out", [], [], federation.keys
    make_keys(keys, 3)
    assert federation.control.register() == (3, 0)
    hostile = Hostile(ABUSES, federation.address, keys / "superlink" / CA, keys / "supernode-2")
    hostile.start()

    def kill_before_round_1_and_after_round_3(over):
        for rounds in (0, 3):
            while not over.wait(0.01):
                if (out / CHECKPOINT).exists() and len(read_metrics(out)) >= rounds:
                    reached.append((len(read_metrics(out)), kill(federation, "ServerApp")))
                    break

    with meanwhile(kill_before_round_1_and_after_round_3):
        run = complete(federation, deployed_run_config(config, out, False), said.append)
    hostile.over.set()
    hostile.join()
    text = "".join(said)
    assert run.status == "finished:completed", text
    assert reached == [(0, True), (3, True)] and text.count("goes on from its checkpoint") == 2
    assert hostile.failed is None, hostile.failed
    statuses = {status for _, status in hostile.answers}
    assert {400, 429} <= statuses and not [one for one in hostile.answers if one[1] >= 500], hostile.answers
    log = (federation.processes.logs / "superlink.log").read_text()
    assert "client-2" in log and "is refused, with status 400" in log
    lines = read_metrics(out)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5] and not any(line["skipped"] for line in lines)
    run_experiment(config, tmp_path / "calm")
    assert (out / STATE).read_bytes() == (tmp_path / "calm" / STATE).read_bytes()


@pytest.mark.deployment
@pytest.mark.slow
def test_networks_that_nobody_changed_are_sent_without_constants(federation, tmp_path):
    """A process for each message, which loads all that these networks need: a round of the two clients."""
    config = ExperimentConfig.from_dict({**bundle.CONFIG, **bundle.ONE_ROUND})
    out, local, said = tmp_path / "run", tmp_path / "local", []
    run_experiment(config, local)
    run = complete(federation, deployed_run_config(config, out, False), said.append)
    assert run.completed, "".join(said)
    bundle.assert_same(out, local)
    for line, predicted in zip(read_metrics(out), read_metrics(local), strict=True):
        for which in ("download_bytes", "upload_bytes"):  # here of messages, there of the cohort's numbers
            assert abs(line[which] - predicted[which]) < HEADER * config.cohort
            assert line[which] < 4 * read_summary(out)["parameters"]["frozen"] / 5, "they would be seen"


SHIFTED = """
import datetime, sys
from flwr.supernode import node_auth_http_interceptor as signing
now = signing.now
signing.now = lambda: now() - datetime.timedelta(minutes=10)
from fedpart.flower.workarounds.supernode import main
main()
"""


@pytest.mark.deployment
@pytest.mark.slow
def test_a_supernode_whose_clock_is_ten_minutes_off_fails_and_both_sides_say_why(federation):
    keys = federation.keys / "supernode-0"
    command = supernode(federation.address, keys, keys / CA, free_ports(1)[0], 0, 2)
    options = command[command.index("--superlink") :]
    node = subprocess.run([sys.executable, "-c", SHIFTED, *options], capture_output=True, text=True)
    said = node.stdout + node.stderr
    assert node.returncode == 1 and "gracefully" not in said
    for text in (said, federation.processes.log("superlink", 100)):
        assert "The SuperNode's clock is 600 s behind the SuperLink's" in text and "NTP" in text


SIZED = {  # a large and a small device, whose messages lose most of what they say, and say it later
    "rounds": 3,
    "evaluate_every": 1,
    "architectures": TWO,
    "upload": "topk",
    "upload_options": {"share": 0.1, "values": "int8"},
    "error_feedback": True,
}


class Reached(Exception):
    pass


@pytest.mark.deployment
@pytest.mark.slow
def test_a_federation_refuses_strangers_and_survives_kills(federation, tmp_path):
    config, out = ExperimentConfig.from_dict({**EXPERIMENT, **SIZED}), tmp_path / "out"
    nowhere = {**EXPERIMENT, "data": "mnist", "data_dir": str(tmp_path / "nowhere")}
    missing, kept = ExperimentConfig.from_dict(nowhere), federation.private / "homes"
    residuals = {*kept.rglob("residuals/*/*/*.pt")}
    make_keys(tmp_path / "elsewhere", 1)
    control, keys, link = federation.control, federation.keys, federation.address
    said, kills = [], threading.Semaphore(1)

    def until_round_1(text):
        said.append(text)
        if "round 1/3:" in text:
            raise Reached

    authority, ports = keys / "superlink" / CA, free_ports(3)
    # a key that nobody has registered, and a federation's node that trusts another authority
    stranger = supernode(link, tmp_path / "elsewhere" / "supernode-0", authority, ports[0], 0, 2)
    other = tmp_path / "elsewhere" / "superlink" / CA
    deceived = supernode(link, keys / "supernode-0", other, ports[1], 0, 2)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    commands = stranger, [*deceived, "--max-retries", "1"]
    refused = [subprocess.Popen(command, **pipes) for command in commands]
    # a key that is registered as client 3, whose node says that it is client 1
    make_keys(keys, 4)
    assert control.register() == (4, 0)
    liar = supernode(link, keys / "supernode-3", authority, ports[2], 1, 2)
    federation.processes.start("supernode-3", liar)
    federation.start_executor("clientapp-3", f"127.0.0.1:{ports[2]}")

    first = control.start(deployed_run_config(config, out, False))
    with pytest.raises(Reached):
        control.follow(first, until_round_1)
    assert kill(federation, "ServerApp")

    # somebody who knows the authority, but not the operator's token
    (keys / "guest").mkdir()
    (keys / "guest" / CA).write_bytes(authority.read_bytes())
    (keys / "guest" / TOKEN).write_text("guessed")
    with pytest.raises(RunError, match="refuses"):
        Control(link, keys / "guest").start({})
    federation.wait_for(["client-3"])
    fails = control.start(deployed_run_config(missing, tmp_path / "failed", False))
    second = control.start(deployed_run_config(config, out, True))

    resumed = []

    def kill_the_superlink_after_a_round(text):
        resumed.append(text)
        if re.search(r"round \d/3:", text) and kills.acquire(blocking=False):
            kill(federation, "SuperLink")

    run = watch(federation, second, kill_the_superlink_after_a_round)
    if "heartbeat" in run.details:  # a busy machine has taken a minute to start the SuperLink again
        run = watch(federation, control.start(deployed_run_config(config, out, True)), resumed.append)
    assert run.status == "finished:completed", "".join(said + resumed)
    assert "round 1/3:" not in "".join(resumed)  # the killed run's checkpoint has been read
    assert "superlink has ended; it is started again.\n" in resumed
    assert watch(federation, first, lambda text: None).status == "finished:failed"
    shown = fedpart("results", "--link", link, "--keys", keys / "operator", "--run", str(fails))
    assert shown.exit_code == 1
    assert "finished and failed" in shown.output and "nowhere" in shown.output
    (keys / "operator" / "node-3.pub").unlink()
    assert control.register() == (3, 1)
    assert control.nodes().keys() == {"client-0", "client-1", "client-2"}
    assert control.register() == (3, 0)
    unregistered, distrusting = (process.communicate(timeout=600)[0] for process in refused)

    assert all(process.returncode for process in refused)
    assert "Failed to activate SuperNode" in unregistered
    assert "CERTIFICATE_VERIFY_FAILED" in distrusting
    assert "It says that it is client 1, but its key is registered as 'client-3'" in "".join(said + resumed)
    for client in range(2):  # what its messages have lost, for the next one
        assert {*kept.glob(f"clientapp-{client}/fedpart/residuals/*/{client}/*.pt")} - residuals
    run_experiment(config, tmp_path / "local")
    assert (out / STATE).read_bytes() == (tmp_path / "local" / STATE).read_bytes()
