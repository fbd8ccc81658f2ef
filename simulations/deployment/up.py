"""A federation on this machine: SuperLink, executors and SuperNodes as plain processes, for one run."""

import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedpart.flower.nodes import node_name
from fedpart.flower.workarounds.control import SubmittedRun
from fedpart.training.stopping import caught_signals
from simulations.config.load import ExperimentConfig
from simulations.deployment.control import Control, Unreachable
from simulations.deployment.keys import CA, make_keys
from simulations.deployment.processes import Processes, executor, free_ports, superlink, supernode
from simulations.errors import RunError
from simulations.flower.config import deployed_run_config
from simulations.folders.resolved import held
from simulations.folders.run_directory import make_folder, read_metrics
from simulations.running.recorder import Interrupted

POLL_SECONDS = 0.5
_DRAFT, _PRIVATE = ".fedpart-", "fedpart-up-"  # begin the names of folders for keys
START_SECONDS = 600.0  # that the SuperLink, and then the SuperNodes, may take to start
TOGETHER = 16  # SuperNodes that start at a time
ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "MALLOC_ARENA_MAX": "1",  # for all threads: each of Flower's would keep what a message took
}


class Deployment:
    """SuperLink, executors and a SuperNode for each client; a context that ends them all."""

    def __init__(
        self, nodes: int, private: Path, logs: Path, check: Callable[[], None] = lambda: None
    ) -> None:
        self.nodes, self.private, self.keys, self._check = nodes, private, private / "keys", check
        make_keys(self.keys, nodes)
        self._port, *self._ports = free_ports(1 + nodes)
        self.address = f"127.0.0.1:{self._port}"
        path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", "")))
        self.processes = Processes(logs, private / "homes", {**ENVIRONMENT, "PATH": path})
        self.control = Control(self.address, self.keys / "operator")

    def __enter__(self) -> "Deployment":
        try:
            self._start_superlink()
            self.control.register()
            self.start_executor("serverapp", self.address)
            authority = self.keys / "superlink" / CA
            for client, port in enumerate(self._ports):
                name = f"supernode-{client}"
                command = supernode(self.address, self.keys / name, authority, port, client, self.nodes)
                self.processes.start(name, command)
                self.start_executor(f"clientapp-{client}", f"127.0.0.1:{port}")
                # Too many at once are too slow for each other's handshakes, and a ServerApp beside them, too.
                if client % TOGETHER == TOGETHER - 1 or client == self.nodes - 1:
                    self.wait_for(node_name(started) for started in range(client + 1))
        except BaseException as error:
            self.__exit__(error)
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self.processes.__exit__(*failure)

    def _start_superlink(self) -> None:
        command = superlink(self.keys / "superlink", self._port, self.private / "state.db")
        self.processes.start("superlink", command)
        for ended in self._tries():
            if ended:
                break
            with suppress(Unreachable):
                self.control.nodes()
                return
        raise RunError(f"The SuperLink does not start:\n{self.processes.log('superlink')}")

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait until the SuperNodes of these names are online."""
        wanted = missing = {*names}
        for _ in self._tries():
            with suppress(Unreachable):
                missing = wanted - {name for name, is_ in self.control.nodes().items() if is_ == "online"}
            if not missing:
                return
        name = min(missing).replace(node_name(0)[:-1], "supernode-")
        raise RunError(f"The SuperNode of {min(missing)} is not online:\n{self.processes.log(name)}")

    def again(self, run: SubmittedRun) -> int | None:
        """See :meth:`.Control.again`."""
        for _ in self._tries():
            with suppress(Unreachable):
                return self.control.again(run)
        raise RunError(f"The SuperLink does not answer:\n{self.processes.log('superlink')}")

    def _tries(self) -> Iterator[list[str]]:
        """A SuperLink may be away, or busy, as while many SuperNodes start; with what has ended since."""
        deadline, ended = time.monotonic() + START_SECONDS, list[str]()
        while time.monotonic() < deadline:
            yield ended
            ended = self.processes.mend()
            self._check()
            time.sleep(POLL_SECONDS)

    def start_executor(self, name: str, address: str) -> None:
        """Start the executor with the keys of that name, for the apps of the server at an address."""
        self.processes.start(name, executor(address, self.keys / name))


def run_deployed(
    config: ExperimentConfig, out: Path, *, resume: bool = False, show: Callable[[str], None] = print
) -> None:
    """Run an experiment on a federation of its own, whose processes are started again if they end."""
    out = out.absolute()
    run_config = deployed_run_config(config, out, resume)
    stopped: list[int] = []

    def unless_stopped() -> None:
        if stopped:
            raise Interrupted(stopped[0], f"round {len(read_metrics(out))}")

    make_folder(out, private=True)
    nodes = f"{config.clients} SuperNodes" if config.clients > 1 else "a SuperNode"
    show(f"Starting a SuperLink and {nodes}, up to a minute on a busy machine; their logs: {out / 'logs'}\n")
    with (
        private_folder() as private,
        caught_signals(stopped),
        Deployment(config.clients, private, out / "logs", check=unless_stopped) as deployment,
    ):
        unless_stopped()
        run = complete(deployment, run_config, show, stopped)
    if not run.completed:
        unless_stopped()
        raise RunError(f"The run has {run.outcome}")


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for keys and state, removed at the end, as are those of processes that were killed."""
    for stale in Path(tempfile.gettempdir()).glob(f"{_PRIVATE}*"):
        with suppress(OSError):
            itself = stale.lstat()
            if stat.S_ISDIR(itself.st_mode) and itself.st_uid == os.getuid():
                with held(stale) as alone:
                    if alone:
                        shutil.rmtree(stale)
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT))
    with held(draft):  # before it has a name that others look for
        private = draft.rename(draft.with_name(draft.name.replace(_DRAFT, _PRIVATE, 1)))
        try:
            yield private
        finally:
            shutil.rmtree(private, ignore_errors=True)


def complete(
    deployment: Deployment, run_config: Mapping[str, Any], show: Callable[[str], None],
    stopped: Sequence[int] = (),
) -> SubmittedRun:  # fmt: skip
    """Start a run, and start it again where its ServerApp dies; what has become of it; see :func:`watch`."""
    next: int | None = deployment.control.start(run_config)
    while next is not None:
        run, next = watch(deployment, next, show, stopped), None
        if not stopped and (next := deployment.again(run)) is not None:
            show(f"The ServerApp of run {run.id} has died; run {next} goes on from its checkpoint.\n")
    return run


def watch(
    deployment: Deployment, id: int, show: Callable[[str], None], stopped: Sequence[int] = ()
) -> SubmittedRun:
    """Keep all alive until the run has ended; ``stopped`` counts signals, the second ends it at once."""
    control, processes, asked = deployment.control, deployment.processes, False
    run = SubmittedRun(id, "pending", "", "")
    listener = Control(deployment.address, deployment.keys / "operator")
    reader = threading.Thread(target=listener.follow, args=(id, show, False), daemon=True)
    reader.start()
    while True:
        for name in processes.mend():
            show(f"{name} has ended; it is started again.\n")
        if stopped and not asked:
            show("Stopping after this round (once more to stop at once).\n")
            processes.finish("serverapp")
            asked = True
        left = asked and processes.ended("serverapp")  # before the question: a run that ends says so first
        with suppress(Unreachable):  # the SuperLink is started again
            run = control.run(id)
        if run.finished:
            reader.join(timeout=5)
        if run.finished or left:
            return run
        if len(stopped) > 1:
            raise KeyboardInterrupt
        time.sleep(POLL_SECONDS)
