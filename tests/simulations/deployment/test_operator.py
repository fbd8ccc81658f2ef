"""The operator's side of a deployment, without a federation: registration, signals, health."""

import os
import signal
import ssl
import stat
import subprocess
import sys
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import pytest
from command_line import fedpart
from cryptography.hazmat.primitives import serialization
from fake_runs import small_config
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedpart.flower.workarounds import superlink
from fedpart.flower.workarounds.control import SubmittedRun
from simulations.deployment import control, health, processes, up
from simulations.deployment.control import Control, Unreachable
from simulations.deployment.keys import CA, make_keys
from simulations.deployment.processes import Processes
from simulations.running.recorder import Interrupted

PATIENCE = 600  # seconds, for what takes a moment where nothing else runs


@pytest.fixture
def reached(tmp_path, monkeypatch):
    """A Control, what a SuperLink would answer to it, and no SuperLink."""
    make_keys(tmp_path / "keys", 3)
    monkeypatch.setattr(control.time, "sleep", lambda seconds: None)
    connection = Control("127.0.0.1:1", tmp_path / "keys" / "operator")
    connection.calls = {}  # by name: what answers it
    connection._call = lambda name, /, *request, **fields: connection.calls[name](*request, **fields)
    connection._call.stream = connection._call
    return connection


@pytest.fixture
def workers(tmp_path):
    """Processes that wait until they are asked to end."""
    with Processes(tmp_path / "logs", tmp_path / "homes", {}) as running:
        yield running


def waiting(name="executor"):
    return [sys.executable, "-c", "import time; time.sleep(600)", name]


def public_key(folder, client):
    text = (folder / f"node-{client}.pub").read_bytes()
    return public_key_to_bytes(serialization.load_ssh_public_key(text))


def test_keys_are_registered_for_the_clients_that_their_files_name_and_withdrawn_without_them(reached):
    nodes, registered, withdrawn = [], [], []
    keys = {f"client-{client}": public_key(reached.keys, client) for client in range(3)}
    reached.calls["ListNodes"] = lambda: SimpleNamespace(nodes_info=nodes)
    reached.calls["RegisterNode"] = lambda **fields: registered.append(fields)
    reached.calls["UnregisterNode"] = lambda node_id: withdrawn.append(node_id)
    (reached.keys / "node-1.pub").unlink()
    assert reached.register() == (2, 0)
    assert registered == [{"name": name, "public_key": keys[name]} for name in ("client-0", "client-2")]
    for number, key in enumerate(keys.values(), 70):
        nodes.append(SimpleNamespace(node_id=number, status="online", public_key=key))
    nodes.append(SimpleNamespace(node_id=71, status="unregistered", public_key=b"older"))
    assert reached.register() == (2, 1) and withdrawn == [71] and len(registered) == 2


@pytest.mark.parametrize("hint", [True, False])
def test_what_nobody_runs_yet_is_said(reached, monkeypatch, hint):
    """Flower's stream of a run's log is silent until the run begins."""
    statuses = ["starting", "pending", "pending", "starting", "running", "finished:completed"]
    reached.run = lambda id: SubmittedRun(id, statuses.pop(0), "", "")
    part = SimpleNamespace(latest_timestamp=1.0, log_output="round 1\n")
    reached.calls["StreamLogs"] = lambda **fields: [part]
    monkeypatch.setattr(control, "PENDING_SECONDS", 0.0)
    said = []
    assert reached.follow(7, said.append, hint).completed
    *warnings, log = said
    assert log == "round 1\n" and len(warnings) == hint
    assert all("Run 7 is pending" in warning and "executor" in warning for warning in warnings)


def test_a_run_that_has_died_is_started_again_a_few_times_and_by_one(reached):
    started, runs = [], []

    def start(config):
        config = {"out": "/out", **config}
        started.append(config)
        details = "No heartbeat received from the task"
        runs.insert(0, SubmittedRun(len(started), "finished:failed", details, "/out", config))
        return len(started)

    reached.start, reached.runs = start, lambda: [SubmittedRun(99, "running", "", "/other"), *runs]
    reached.start({"experiment": "{}", "resume": False})
    ids = [1]
    while (id := reached.again(runs[0])) is not None:
        ids.append(id)
    assert ids == [1, 2, 3, 4] and len(started) == 1 + control.RESTARTS
    times = [(one["resume"], one.get("restarts", 0)) for one in started]
    assert times == [(False, 0), (True, 1), (True, 2), (True, 3)]
    assert {one["experiment"] for one in started} == {"{}"}
    assert reached.again(runs[-1]) == 4, "somebody else has started it again"
    for status, details in (("finished:completed", ""), ("finished:failed", "the disk is full")):
        assert reached.again(SubmittedRun(5, status, details, "/out")) is None


def test_keys_are_added_where_the_others_belong_to_another_user(tmp_path, monkeypatch):
    """Modes of others' folders are not for root to change, without the capability FOWNER."""

    def refuse(path, mode):
        raise PermissionError(1, "Operation not permitted", str(path))

    make_keys(tmp_path, 1)
    monkeypatch.setattr(Path, "chmod", refuse)
    make_keys(tmp_path, 2, owner=os.getuid())
    assert (tmp_path / "supernode-1" / "node.key").exists()


def test_the_superlinks_database_is_its_users_alone(tmp_path, monkeypatch):
    flower = SimpleNamespace(flower_superlink=lambda: (tmp_path / sys.argv[2]).touch())
    flower.load_control_authn_plugin = None
    monkeypatch.setattr(superlink.importlib, "import_module", lambda name: flower)
    of_database = ("hide_from_database", "take_turns")
    patches = (*of_database, "hold_questions", "guard_pushes", "guard_instructions", "open_door")
    for patch in patches:  # of this process's Flower, for good
        monkeypatch.setattr(superlink, patch, lambda *given: None)
    (tmp_path / "token").write_text("secret")
    command = ["superlink", "--operator-token-file", str(tmp_path / "token"), "--database", "state.db"]
    monkeypatch.setattr(sys, "argv", command)
    before = os.umask(0o022)
    try:
        superlink.main()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state.db").stat().st_mode) == 0o600


def test_a_process_that_ends_is_started_again_unless_it_is_to_end(workers, monkeypatch):
    monkeypatch.setattr(processes, "RESTART_SECONDS", 0.0)
    workers.start("superlink", waiting())
    first = workers.pid("superlink")
    assert workers.mend() == []
    os.kill(first, signal.SIGKILL)
    workers._running["superlink"].wait()
    assert workers.mend() == ["superlink"] and workers.mend() == []
    assert workers.pid("superlink") != first and not workers.ended("superlink")
    workers.start("serverapp", [sys.executable, "-c", ""])
    workers._running["serverapp"].wait()
    assert workers.mend() == ["serverapp"]
    workers.finish("serverapp")
    assert workers.mend() == [] and workers.ended("serverapp")


def test_a_run_that_nobody_will_begin_is_not_waited_for(workers, monkeypatch):
    """The executor is asked to stop before it has taken the run: Flower leaves the run pending for ever."""
    looks = []

    def run(id):
        looks.append(id)
        assert len(looks) < 100, "it is waited for"
        if len(looks) == 1:
            raise Unreachable("it starts")
        return SubmittedRun(id, "pending", "", "")

    monkeypatch.setattr(up, "Control", lambda *given: SimpleNamespace(follow=lambda *given: None))
    workers.start("serverapp", waiting())
    federation = SimpleNamespace(control=SimpleNamespace(run=run), processes=workers, address="", keys=Path())
    left = up.watch(federation, 3, lambda text: None, [signal.SIGTERM])
    assert left == SubmittedRun(3, "pending", "", "") and workers.ended("serverapp")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_processes_start_ends_them_and_nothing_is_submitted(tmp_path, monkeypatch, number):
    asked, ended = [], []

    def nodes(self):
        asked.append(number)
        assert len(asked) < 10, "it is waited for"
        os.kill(os.getpid(), number)
        raise Unreachable("it starts")

    def start(self, run_config):
        raise AssertionError("it is submitted")

    monkeypatch.setattr(Processes, "start", lambda *given: None)
    monkeypatch.setattr(Processes, "__exit__", lambda *given: ended.append(True))
    monkeypatch.setattr(Control, "nodes", nodes)
    monkeypatch.setattr(Control, "start", start)
    file = tmp_path / "one.yaml"
    file.write_text("{data: digits, model: digits_cnn, clients: 1, cohort: 1, chunks: [1]}")
    shown = fedpart("up", str(file), "--out", str(tmp_path / "out"))
    assert shown.exit_code == 128 + number
    assert "Stopped before anything was run" in shown.output, "there is no run in it to continue"
    assert len(asked) == 1 and ended == [True]


def test_many_supernodes_are_asked_for_together_and_a_busy_superlink_is_asked_again(tmp_path, monkeypatch):
    names, asked = {up.node_name(client) for client in range(40)}, []

    def nodes():
        asked.append(True)
        if len(asked) == 2:
            raise Unreachable("The handshake operation timed out")
        return dict.fromkeys(sorted(names)[: 15 * len(asked)], "online")

    federation = up.Deployment(1, tmp_path, tmp_path / "logs")
    federation.control = SimpleNamespace(nodes=nodes)
    monkeypatch.setattr(up, "POLL_SECONDS", 0.0)
    federation.wait_for(iter(names))
    assert len(asked) == 3


@pytest.mark.parametrize("status", ["finished:completed", "finished:failed", "pending", "running"])
def test_a_signal_interrupts_unless_the_last_round_is_over(tmp_path, monkeypatch, status):
    """It comes before the run has ended so."""
    link = SimpleNamespace(control=SimpleNamespace(start=lambda run_config: 1))

    def watch(federation, id, show, stopped):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped == [signal.SIGTERM]
        return SubmittedRun(id, status, "", "")

    monkeypatch.setattr(up, "Deployment", lambda *given, **more: nullcontext(link))
    monkeypatch.setattr(up, "watch", watch)
    over = status == "finished:completed"
    with nullcontext() if over else pytest.raises(Interrupted, match="SIGTERM after round 0"):
        up.run_deployed(small_config(), tmp_path / "out")


def test_an_executor_that_hangs_is_not_healthy(tmp_path):
    program = tmp_path / f"executor-{os.getpid()}"
    program.write_text("import time\nprint('up', flush=True)\nwhile True: time.sleep(0.01)")
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE)
    try:
        assert process.stdout.read(2) == b"up"
        assert health.running(program.name) == [process.pid]
        assert health.moves(process.pid, PATIENCE)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert not health.moves(process.pid, 0.5)
    finally:
        process.kill()
        process.communicate()
    assert health.running(program.name) == [] and not health.moves(process.pid, 0.5)


class Answering(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


def test_a_server_that_does_not_answer_is_not_healthy(tmp_path, monkeypatch):
    for federation in ("ours", "other"):
        make_keys(tmp_path / federation, 1)
    keys = tmp_path / "ours" / "superlink"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")

    def look(authority):
        address = f"127.0.0.1:{server.server_port}"
        monkeypatch.setattr(sys, "argv", ["health", address, str(authority / CA)])
        health.main()

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            look(keys)
            with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
                look(tmp_path / "other" / "superlink")
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(URLError, match="refused"):
        look(keys)


@pytest.mark.slow
def test_health_is_a_command(tmp_path):
    make_keys(tmp_path, 1)
    command = [sys.executable, "-m", "simulations.deployment.health", "127.0.0.1:1"]
    done = subprocess.run([*command, tmp_path / "superlink" / CA], capture_output=True, text=True)
    assert done.returncode == 1 and "refused" in done.stderr
