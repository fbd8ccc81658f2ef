"""The processes of a federation: the commands of Flower's programs, and who starts and ends them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

from simulations.deployment.keys import CA, CERTIFICATE, CERTIFICATE_KEY, NODE_KEY, SECRET, TOKEN

_TIED = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, int(sys.argv[1]))\n"  # PR_SET_PDEATHSIG
    "if os.getppid() == int(sys.argv[2]): os.execv(sys.argv[3], sys.argv[3:])"  # else it has died before
)


def tied(number: int, command: Sequence[str]) -> list[str]:
    """The command, whose process gets a signal when the one that starts it dies; on Linux alone."""
    if sys.platform != "linux":
        return [*command]
    return [sys.executable, "-c", _TIED, str(int(number)), str(os.getpid()), *command]


def tool(name: str) -> str:
    """Path of a command that is installed beside this Python."""
    return str(Path(sys.executable).parent / name)


def superlink(keys: Path, port: int, database: Path) -> list[str]:
    """The command of the SuperLink, with its folder of keys, the port of its APIs, the file of its state."""
    return [
        *(tool("python"), "-m", "fedpart.flower.workarounds.superlink"),
        *("--operator-token-file", str(keys / TOKEN), "--isolation", "process", "--enable-supernode-auth"),
        *("--host", "127.0.0.1", "--port", str(port), *_server(keys), "--database", str(database)),
    ]


def supernode(address: str, keys: Path, authority: Path, port: int, client: int, clients: int) -> list[str]:
    """The command of a SuperNode that is ``client`` of ``clients``; ``port`` is for its executor."""
    return [
        *(tool("python"), "-m", "fedpart.flower.workarounds.supernode", "--superlink", address),
        *("--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(keys / NODE_KEY), "--isolation", "process"),
        *("--host", "127.0.0.1", "--port", str(port), *_server(keys)),
        *("--node-config", f"partition-id={client} num-partitions={clients}"),
    ]


def executor(address: str, keys: Path) -> list[str]:
    """The command of the executor with the keys of a folder, for the apps of the server at an address."""
    return [
        *(tool("python"), "-m", "fedpart.flower.workarounds.executor", "--runtime-api-address", address),
        *("--root-certificates", str(keys / CA), "--superexec-auth-secret-file", str(keys / SECRET)),
    ]


def _server(keys: Path) -> list[str]:
    """How a server of Flower is told its certificate and the secret of its executor."""
    files = {"ca-certfile": CA, "certfile": CERTIFICATE, "keyfile": CERTIFICATE_KEY}
    options = [part for option, name in files.items() for part in (f"--ssl-{option}", str(keys / name))]
    return [*options, "--superexec-auth-secret-file", str(keys / SECRET)]


RESTART_SECONDS, GRACE_SECONDS = 5.0, 5.0
NICE = 5  # of clients' processes: however much they compute, the servers can answer


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface on which nobody listens."""
    with ExitStack() as probes:
        opened = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in opened]


class Processes(AbstractContextManager["Processes"]):
    """Long-lived processes, each in a session of its own; a context that ends them all."""

    def __init__(self, logs: Path, homes: Path, environment: Mapping[str, str]) -> None:
        self.logs, self._homes, self._environment = logs, homes, {**os.environ, **environment}
        self._commands: dict[str, Sequence[str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: dict[str, float] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process; ``command`` begins with a path."""
        self._commands[name] = command
        self._ended.pop(name, None)
        with (self.logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                tied(signal.SIGHUP, command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, "FLWR_HOME": str(self._homes / name)},
                start_new_session=True,
            )
        if name.startswith(("supernode", "clientapp")):
            os.setpriority(os.PRIO_PROCESS, self.pid(name), NICE)

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def ended(self, name: str) -> bool:
        """Whether the process of that name has ended, and has not been started again."""
        return self._running[name].poll() is not None

    def mend(self) -> list[str]:
        """Start again what ended some seconds ago; names of what has ended since the last call."""
        now, new = time.monotonic(), []
        for name, command in list(self._commands.items()):
            if not self.ended(name):
                continue
            if name not in self._ended:
                self._ended[name] = now
                new.append(name)
            elif now - self._ended[name] >= RESTART_SECONDS:
                self.start(name, command)
        return new

    def finish(self, name: str) -> None:
        """Ask a process to end, and do not start it again."""
        self._running[name].send_signal(signal.SIGTERM)
        self._commands.pop(name)

    def log(self, name: str, lines: int = 15) -> str:
        """The end of what a process has printed."""
        text = (self.logs / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def __exit__(self, *failure: object) -> None:
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._running.values():
            with suppress(ProcessLookupError):  # all of its session have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
