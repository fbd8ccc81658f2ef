"""A federation on this machine: SuperLink, executors and SuperNodes as plain processes, for one run."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from server.nodes import node_name
from simulations.config import ExperimentConfig
from simulations.deployment.control import Control, Run, Unreachable
from simulations.deployment.keys import (
    CA,
    CERTIFICATE,
    CERTIFICATE_KEY,
    NODE_KEY,
    SECRET,
    TOKEN,
    make_keys,
)
from simulations.deployment.processes import Processes, free_ports, tool
from simulations.desk import Interrupted
from simulations.experiment import RunError
from simulations.flower_config import deployed_run_config
from simulations.run_directory import read_metrics

POLL_SECONDS = 0.5
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


class Federation:
    """SuperLink, executors and as many SuperNodes as there are clients; a context that ends them all.

    Args:
        nodes: SuperNodes, for clients 0 to nodes - 1.
        private: folder for keys and state, on a disk; empty.
        logs: folder for what the processes print.
        patience: seconds that they may take to start.

    Attributes:
        control: the operator's connection.
        processes: ``superlink``, ``serverapp``, and ``supernode-<k>`` and ``clientapp-<k>`` for client k.
    """

    def __init__(self, nodes: int, private: Path, logs: Path, patience: float = 600.0) -> None:
        self.nodes, self.private, self.keys, self.patience = nodes, private, private / "keys", patience
        make_keys(self.keys, nodes)
        self._port, *self._ports = free_ports(1 + nodes)
        self.address = f"127.0.0.1:{self._port}"
        path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", "")))
        self.processes = Processes(logs, private / "homes", {**ENVIRONMENT, "PATH": path})
        self.control = Control(self.address, self.keys / "operator")

    def __enter__(self) -> Federation:
        try:
            self._start_superlink()
            self.control.register()
            self.start_executor("serverapp", self.address)
            for client in range(self.nodes):
                self.start_node(client)
            # A ServerApp that starts while all of these do may be too slow for Flower, which gives it up.
            self.wait_for(node_name(client) for client in range(self.nodes))
        except BaseException as error:
            self.__exit__(error)
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self.processes.__exit__(*failure)

    def start_node(self, client: int) -> None:
        """Start the SuperNode of a client, and the executor of its ClientApps."""
        keys, port = self.keys / f"supernode-{client}", self._ports[client]
        self.processes.start(
            f"supernode-{client}",
            supernode(self.address, keys, self.keys / "superlink" / CA, port, client, self.nodes),
        )
        self.start_executor(f"clientapp-{client}", f"127.0.0.1:{port}")

    def _start_superlink(self) -> None:
        keys = self.keys / "superlink"
        command = [tool("python"), "-m", "simulations.deployment.superlink"]
        command += ["--operator-token-file", str(keys / TOKEN), "--isolation", "process"]
        command += [
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
            "--enable-supernode-auth",
            *_server(keys),
        ]
        self.processes.start("superlink", [*command, "--database", str(self.private / "state.db")])
        deadline = time.monotonic() + self.patience
        while True:
            try:
                self.control.nodes()
                return
            except Unreachable:
                if self.processes.mend() or time.monotonic() > deadline:
                    raise RunError(
                        f"The SuperLink does not start:\n{self.processes.log('superlink')}"
                    ) from None
                time.sleep(POLL_SECONDS)

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait until the SuperNodes of these names are online.

        Raises:
            RunError: one is not before the federation's patience is over; with what its process printed last.
        """
        wanted, deadline = set(names), time.monotonic() + self.patience
        while missing := {name for name in wanted if self.control.nodes().get(name) != "online"}:
            self.processes.mend()
            if time.monotonic() > deadline:
                name = min(missing).replace(node_name(0)[:-1], "supernode-")
                raise RunError(f"The SuperNode of {min(missing)} is not online:\n{self.processes.log(name)}")
            time.sleep(POLL_SECONDS)

    def start_executor(self, name: str, address: str) -> None:
        """Start the executor with the keys of that name, for the apps of the server at an address."""
        keys = self.keys / name
        command = [tool("python"), "-m", "simulations.deployment.executor"]
        command += ["--runtime-api-address", address, "--root-certificates", str(keys / CA)]
        self.processes.start(name, [*command, "--superexec-auth-secret-file", str(keys / SECRET)])


def supernode(address: str, keys: Path, authority: Path, port: int, client: int, clients: int) -> list[str]:
    """The command of a SuperNode on this machine.

    Args:
        address: of the SuperLink.
        keys: the folder of the node's keys.
        authority: the CA's certificate, by which it knows the SuperLink.
        port: for its executor.
        client, clients: which client it says that it is, of how many.
    """
    return [
        *(tool("flower-supernode"), "--superlink", address, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(keys / NODE_KEY), "--isolation", "process"),
        *("--host", "127.0.0.1", "--port", str(port), *_server(keys)),
        *("--node-config", f"partition-id={client} num-partitions={clients}"),
    ]


def _server(keys: Path) -> list[str]:
    """How a server of Flower is told its certificate and the secret of its executor."""
    files = {"ca-certfile": CA, "certfile": CERTIFICATE, "keyfile": CERTIFICATE_KEY}
    options = [part for option, name in files.items() for part in (f"--ssl-{option}", str(keys / name))]
    return [*options, "--superexec-auth-secret-file", str(keys / SECRET)]


def run_deployed(
    config: ExperimentConfig, out: Path, *, resume: bool = False, show: Callable[[str], None] = print
) -> None:
    """Run an experiment on a federation of as many SuperNodes as it has clients, and end the federation.

    A process that ends by itself is started again; a ServerApp that dies ends the run.

    Args:
        config: what to run.
        out: the run's folder; what the processes print is in its ``logs``.
        resume: continue the run that is in ``out``.
        show: receives the run's log.

    Raises:
        RunError: the run failed, or the federation does not start; one sentence, or the end of a log.
        Interrupted: SIGINT or SIGTERM came; a checkpoint is saved if a round was complete.
    """
    out = out.absolute()
    with (
        tempfile.TemporaryDirectory(prefix="fedpart-") as private,
        _signals() as stopped,
        Federation(config.clients, Path(private), out / "logs", config.node_timeout) as federation,
    ):
        id = federation.control.start(deployed_run_config(config, out, resume))
        run = watch(federation, id, show, stopped)
    if stopped:
        raise Interrupted(stopped[0], f"round {len(read_metrics(out))}")
    if run.status != "finished:completed":
        raise RunError(
            f"The run has {run.status.replace(':', ' and ')}: {run.details or 'no reason is known'}"
        )


def watch(federation: Federation, id: int, show: Callable[[str], None], stopped: Sequence[int] = ()) -> Run:
    """Keep the processes alive until the run has ended.

    Args:
        federation: where it runs.
        id: of the run.
        show: receives the run's log, in a thread.
        stopped: grows when a signal comes: the first ends the run after its round, the second at once.
    """
    control, processes, asked = federation.control, federation.processes, False
    reader = threading.Thread(target=_follow, args=(federation, id, show), daemon=True)
    reader.start()
    while True:
        for name in processes.mend():
            show(f"{name} has ended; it is started again.\n")
        if stopped and not asked:
            show("Stopping after this round (once more to stop at once).\n")
            processes.finish("serverapp")
            asked = True
        try:
            run = control.run(id)
        except Unreachable:  # it is started again
            run = None
        if run is not None and run.finished:
            reader.join(timeout=5)
            return run
        if len(stopped) > 1:
            raise KeyboardInterrupt
        time.sleep(POLL_SECONDS)


def _follow(federation: Federation, id: int, show: Callable[[str], None]) -> None:
    Control(federation.address, federation.keys / "operator").follow(id, show)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of ending by them; numbers of those that came."""
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
