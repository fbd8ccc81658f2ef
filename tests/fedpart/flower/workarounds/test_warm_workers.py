"""Our executor: one process for the messages of a run, another for those of the next."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, SubprocessExecutor, subprocess_executor
from one_message import clientapp

from fedpart.flower.workarounds import executor
from fedpart.flower.workarounds.executor import Workers, hide_from_commands

APP = """
import os, threading, time
from pathlib import Path

calls, folder, flwr_exit = [], Path(__file__).parent, None

def run_clientapp(token, **more):
    calls.append(token)
    threads = threading.active_count() - 1  # without that which watches the parent
    (folder / token).write_text(f"{os.getpid()} {threads} {len(calls)}")
    while (folder / "hang").exists():
        time.sleep(0.01)
    flwr_exit(code=0, event_type=None)
"""
PATIENCE = 60.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "an_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(executor, "CLIENTAPP", "an_app")
    monkeypatch.setattr(executor, "WARM", ("an_app",))

    class Node:
        """Is told how a task has ended."""

        def __init__(self, *given):
            self.close = lambda: None

        def __call__(self, name, sub_status, details):
            assert name == "PushTaskOutput"
            (tmp_path / "failed").write_text(sub_status)

    monkeypatch.setattr(executor, "ApiCalls", Node)
    yield tmp_path
    sys.modules.pop("an_app", None)


@pytest.fixture
def staff():
    made = Workers()
    yield made
    made.close()


def until(there):
    end = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def seen(folder, task):
    """Process, threads and calls in the process, as its ClientApp saw them."""
    file = folder / f"token-{task}"
    until(lambda: file.exists() and len(file.read_text().split()) == 3)
    return [int(word) for word in file.read_text().split()]


def test_the_messages_of_a_run_share_a_process_and_those_of_another_have_their_own(folder, staff):
    for task, run in enumerate((1, 1, 1, 2), start=1):
        staff.run = run
        staff.launch(clientapp(task))
    found = [seen(folder, task) for task in range(1, 5)]
    first, other = found[0][0], found[3][0]
    assert [one[0] for one in found] == [first, first, first, other] and other != first != os.getpid()
    assert [one[1:] for one in found] == [[1, 1], [1, 2], [1, 3], [1, 1]]
    assert not (folder / "failed").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_the_node_is_told_of_a_worker_that_dies_and_the_next_message_has_a_new_one(folder, staff):
    (folder / "hang").touch()
    staff.launch(clientapp(1))
    worker, _, _ = seen(folder, 1)
    staff.reconcile()
    assert not (folder / "failed").exists()
    os.kill(worker, signal.SIGKILL)
    until(lambda: staff.reconcile() or (folder / "failed").exists())
    assert (folder / "failed").read_text() == "failed"
    (folder / "hang").unlink()
    staff.launch(clientapp(2))
    assert seen(folder, 2)[0] != worker


def test_a_message_that_comes_while_another_hangs_is_not_held_up(folder, staff, monkeypatch):
    """The SuperNode has been started anew, and nobody waits for the first any more."""
    monkeypatch.setattr(executor, "LAST_SECONDS", 0.1)
    (folder / "hang").touch()
    staff.launch(clientapp(1))
    worker, _, _ = seen(folder, 1)
    staff.launch(clientapp(2))
    assert seen(folder, 2)[0] != worker


def test_a_worker_without_messages_goes(folder, staff, monkeypatch):
    monkeypatch.setattr(executor, "IDLE_SECONDS", 0.1)
    staff.launch(clientapp(1))
    worker, _, _ = seen(folder, 1)
    until(lambda: staff.reconcile() or staff._tasks is None)
    assert not (folder / "failed").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


NOBODY = 65534
SERVERAPP = f"""#!{sys.executable}
import sys, time
from pathlib import Path

at = sys.argv.index("--token-file")
folder = Path(sys.argv[0]).parent
(folder / "read").write_text(Path(sys.argv[at + 1]).read_text())
(folder / "read").rename(folder / "token")
while not (folder / "end").exists():
    time.sleep(0.01)
"""


def test_another_user_reads_no_token(tmp_path, monkeypatch):
    app = tmp_path / TaskType.SERVER_APP
    app.write_text(SERVERAPP)
    app.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)
    hide_from_commands()
    spec = ExecutionSpec(TaskType.SERVER_APP, "127.0.0.1:1", "a token", True, None, False, None, False, 1)
    before = set(psutil.Process().children())
    SubprocessExecutor().launch(spec)
    (process,) = set(psutil.Process().children()) - before
    try:
        until((tmp_path / "token").exists)
        assert (tmp_path / "token").read_text() == "a token"
        seen = everything_that_another_reads(process.pid)
        assert TaskType.SERVER_APP.encode() in seen and b"a token" not in seen
        own = "".join([*process.cmdline(), *process.environ().values()])
        assert "a token" not in own, "nor do those whom it starts inherit it"
    finally:
        (tmp_path / "end").touch()
        process.wait(PATIENCE)


def everything_that_another_reads(pid):
    """Of a process in /proc, by a user without rights, where this one can be another."""
    files = [f"/proc/{pid}/{name}" for name in ("cmdline", "environ", "status")]
    other = {"user": NOBODY} if os.geteuid() == 0 else {}
    return subprocess.run(["/bin/cat", *files], capture_output=True, check=False, **other).stdout


def test_an_app_that_ends_while_apps_are_looked_at_hides_no_other(monkeypatch):
    """SIGCHLD comes at any moment, also while the executor's own look goes through its apps."""
    ending, looks = executor.Ending(), []

    def poll():
        looks.append(None)
        if len(looks) > 1:
            return 0
        ending.look(0, None)  # the signal: it has just ended
        return None

    running = SimpleNamespace(poll=lambda: None)
    monkeypatch.setattr(executor, "_apps", [SimpleNamespace(poll=poll), running])
    ending.look(0, None)
    assert running in executor._apps
