"""An executor with warm ClientApps that ends in order: ``python -m fedpart.flower.workarounds.executor``.

The faults: ``flower-superexec`` starts a Python process for every message, which imports torch and Flower and
builds the client anew: seconds, where the client's own work takes a tenth of one. And it ends at once when it
is asked to, and its ServerApp with it.

This one imports them once, and forks a worker for each run. The worker takes the run's messages one after the
other, with Flower's own code, and keeps in memory what the ClientApp does. One that dies is replaced, and the
SuperNode told so. What is no ClientApp is started as there; it gets SIGTERM if the executor does, which ends
after it: the ServerApp finishes its round and writes a checkpoint before. When the process that has started
it is gone (SIGHUP), the executor takes all of its session with it."""

import gc
import importlib
import multiprocessing
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from importlib.metadata import entry_points
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import httpx
from flwr.common.constant import SubStatus
from flwr.supercore.exit.exit_handler import trigger_exit_handlers
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import LaunchResult, SubprocessExecutor, subprocess_executor
from flwr.supercore.superexec.plugin import AutoExecPlugin

from fedpart.flower.workarounds.protocol import CLIENT_APP, TASK_TOKEN, ApiCalls, patch, retry_handshakes

CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
WARM = (CLIENTAPP, "torch", "fedpart.flower.client")
IDLE_SECONDS = 600.0  # without a message, after which a worker gives its memory back
ASK_SECONDS = 0.05  # between two questions of an executor with a worker; its SuperNode holds them
LAST_SECONDS = 5.0  # that the end of a message may take once its reply is there
_fork = multiprocessing.get_context("fork")
_apps: list[subprocess.Popen[bytes]] = []  # started for tasks that no worker takes


class Workers(SubprocessExecutor):
    """The worker of the run under way."""

    def __init__(self) -> None:
        self.run = 0  # of the next task
        self._of = 0  # the run whose worker there is
        self._worker: Any = None
        self._tasks: Connection | None = None
        self._open: Any = None  # what the worker is at

    def launch(self, spec: Any) -> LaunchResult:
        """Hand the task of a ClientApp to the run's worker; start whatever else it is."""
        if spec.task_type != CLIENT_APP:
            launched: LaunchResult = super().launch(spec)
            return launched
        self._listen(LAST_SECONDS)
        if self._open is not None or self._of != self.run:
            self.close()
        if self._tasks is None:
            self._hire()
        assert self._tasks is not None
        self._open = spec
        with suppress(BrokenPipeError):  # it has just ended, which the next look finds
            self._tasks.send(spec)
        return LaunchResult.accepted()

    def sleep(self, seconds: float) -> None:
        """As long as Flower does while there is no worker."""
        time.sleep(seconds if self._tasks is None else ASK_SECONDS)

    def reconcile(self) -> None:
        """Notice the end of a task, and that of a worker."""
        super().reconcile()
        self._listen(0.0)

    def close(self) -> None:
        """End the worker, whatever it does; the SuperNode is told if that was something."""
        if self._tasks is not None:
            self._tasks.close()
            self._worker.kill()
            self._worker.join()
            self._tasks = None
        if self._open is not None:
            failed, self._open = self._open, None
            tell_failure(failed)

    def _hire(self) -> None:
        """Fork the worker of a run, from a process that has only imported things, which both then share."""
        for name in WARM:
            importlib.import_module(name)
        gc.freeze()  # a collection in the worker would write to all of it, and so copy it
        self._tasks, workers = _fork.Pipe()
        self._worker = _fork.Process(target=_work, args=(workers, self._tasks))
        self._worker.start()
        workers.close()
        self._of = self.run

    def _listen(self, seconds: float) -> None:
        """Note that the task has ended, or the worker, waiting so long for a task that is under way."""
        if self._tasks is None:
            return
        try:
            if self._tasks.poll(seconds if self._open else 0.0):
                self._tasks.recv_bytes(1)  # no object: what a worker sends is not to run here
                self._open = None
        except (EOFError, OSError):
            self.close()


def hide_from_commands() -> None:
    """Let this process's executor give a token in a file without a name.

    The fault: Flower gives a task's token, which is all that a process needs to act as its app, on the
    command line, which every user of the machine can read."""
    patch(subprocess_executor, subprocess=SimpleNamespace(Popen=_start, DEVNULL=subprocess.DEVNULL))


def _start(command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
    at = command.index("--token")
    with tempfile.TemporaryFile() as file:
        file.write(command[at + 1].encode())
        file.seek(0)
        told, kept = ["--token-file", f"/dev/fd/{file.fileno()}"], [file.fileno()]
        _apps.append(subprocess.Popen([*command[:at], *told, *command[at + 2 :]], pass_fds=kept, **more))
    return _apps[-1]


def tell_failure(spec: Any) -> None:
    """Tell the SuperNode that nobody will finish a task; it may know, or be gone itself."""
    heads = {TASK_TOKEN: spec.token}
    node = ApiCalls("runtime", spec.runtime_api_address, _certificates(spec), lambda: heads, spec.insecure)
    with closing(node), suppress(httpx.HTTPError):
        node("PushTaskOutput", sub_status=SubStatus.FAILED, details="The process of the ClientApp has ended.")


def _certificates(spec: Any) -> bytes | None:
    return Path(spec.root_certificates_path).read_bytes() if spec.root_certificates_path else None


def _work(tasks: Connection, of_parent: Connection) -> None:
    """Take a run's tasks one after the other, until the executor has ended."""
    of_parent.close()  # so that the parent's end is one
    _default_signals()
    trigger_exit_handlers(run_before_force_exit=False)  # the executor's, whose connections are not ours
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    with suppress(EOFError):
        while tasks.poll(IDLE_SECONDS):
            run_task(tasks.recv())
            tasks.send_bytes(b".")


def _end_with(parent: Any) -> None:
    """Interrupt this process when the one that has forked it has ended."""
    parent.join()
    signal.raise_signal(signal.SIGINT)


def run_task(spec: Any) -> None:
    """What a process of Flower's for this task does, but its end."""
    clientapp: Any = importlib.import_module(CLIENTAPP)
    patch(clientapp, flwr_exit=lambda code, **more: None)  # it would end this process
    clientapp.run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=spec.insecure,
        certificates=_certificates(spec),
        runtime_dependency_install=spec.runtime_dependency_install,
    )
    trigger_exit_handlers(run_before_force_exit=False)  # it says that the task has ended, and disconnects
    _default_signals()


def _default_signals() -> None:
    """Without a task under way, signals end a process as they end any."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


class _Plugin(AutoExecPlugin):
    def launch_task(self, token: str, task: Any) -> LaunchResult:
        """As Flower's own, which does not tell an executor the run."""
        workers: Any = self.executor
        workers.run = task.run_id
        launched: LaunchResult = super().launch_task(token, task)
        return launched


class Ending:
    """What SIGTERM does: the apps get it, and when they have ended, the executor ends as Flower has it."""

    def __init__(self) -> None:
        self._asked, self._told = 0, list[Any]()
        self._flowers: dict[int, Any] = {}

    def register(self) -> None:
        """Take the place of Flower's handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._flowers[number] = signal.signal(number, self.ask)
        signal.signal(signal.SIGCHLD, self.look)  # a question may take long, and then the app has ended

    def ask(self, number: int, frame: Any) -> None:
        """Begin to end."""
        self._asked = number
        self.look(number, frame)

    def look(self, number: int, frame: Any) -> None:
        """End, if nothing is left to wait for."""
        _apps[:] = [app for app in [*_apps] if app.poll() is None]  # a signal may look meanwhile
        if not self._asked:
            return
        for app in (app for app in _apps if app not in self._told):
            self._told.append(app)
            app.terminate()
        if not _apps:
            self._flowers[self._asked](self._asked, frame)


def main() -> None:
    """Run Flower's executor with the arguments of this command, with workers."""
    flower: Any = run_superexec
    workers, ending, register = Workers(), Ending(), flower.register_signal_handlers

    def registered(**given: Any) -> None:
        register(**given)
        ending.register()

    def sleep(seconds: float) -> None:
        ending.look(0, None)  # an app may have been started since
        workers.sleep(seconds)

    signal.signal(signal.SIGHUP, lambda number, frame: os.killpg(0, signal.SIGKILL))
    patch(flower, get_executor=lambda *given, **more: workers, AutoExecPlugin=_Plugin)
    patch(flower, register_signal_handlers=registered, time=SimpleNamespace(sleep=sleep))
    hide_from_commands()
    retry_handshakes()
    resolve_name(next(iter(entry_points(group="console_scripts", name="flower-superexec"))).value)()


if __name__ == "__main__":
    main()
