"""Hosts: computers of a network of their own on this machine, by Linux namespaces; making them takes root.

Each has its own address, name, processes, /dev/shm and /tmp/ray, and shares the other files: so a program
that reaches another host by its processes or its memory fails, as it would between machines.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from places import ROOT

HEALTH = (
    "initial_delay_ms",
    "period_ms",
    "timeout_ms",
)  # Ray misses a host after seconds, in place of a minute
_ALIVE = "while sleep 1; do :; done"  # a shell: it waits for processes whose parents have ended
_OWN = "mkdir -p /tmp/ray && mount -t tmpfs own /tmp/ray && mount -t tmpfs own /dev/shm && ip link set lo up"


class Namespaces:
    """A process for whose lifetime they exist; all that runs in them ends with it."""

    def __init__(self, *kinds: str, begin: str) -> None:
        command = ["unshare", *kinds, "sh", "-c", f"{begin} && echo made && {_ALIVE}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        if self._process.stdout.readline() != "made\n":
            raise PermissionError(self._process.communicate()[1].strip())
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self.pid = int(children[0]) if "--fork" in kinds else self._process.pid

    def end(self) -> None:
        self._process.kill()  # which ends the first process in it, see --kill-child, and so all
        self._process.communicate()


class Host(Namespaces):
    """A computer; ``address`` is its own in the hosts' network."""

    def __init__(self, name: str, address: str) -> None:
        kinds = ("--net", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc")
        super().__init__(*kinds, begin=f"hostname {name} && {_OWN}")
        self.name, self.address = name, address

    def command(self, *words: str | Path) -> list[str]:
        """What runs a command there."""
        spaces = ("--net", "--pid", "--mount", "--uts", "--", "env", f"--chdir={os.getcwd()}")
        return ["nsenter", "--target", str(self.pid), *spaces, *map(str, words)]

    def run(self, *words: str | Path, **environment: str) -> str:
        """What a command says there; its failure is one of the test."""
        done = subprocess.run(
            self.command(*words), env=surroundings(**environment), capture_output=True, text=True
        )
        assert done.returncode == 0, f"{self.name}: {' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def begin(self, log: Path, *words: str | Path, **environment: str) -> subprocess.Popen:
        """Start a command there, whose output goes into a file; it ends with its host."""
        with log.open("ab") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            return subprocess.Popen(self.command(*words), env=surroundings(**environment), **streams)

    def fedpart(self, *arguments: str | Path, **environment: str) -> str:
        return self.run(*FEDPART, *arguments, **environment)

    def slow(self) -> None:
        """Delay and lose what it sends, by netem, or where the kernel has none by a bucket that runs over."""
        for kind in ("netem delay 20ms loss 1%", "tbf rate 50mbit burst 64kbit latency 20ms"):
            command = self.command(*f"tc qdisc add dev eth0 root {kind}".split())
            if subprocess.run(command, capture_output=True).returncode == 0:
                return
        raise AssertionError(f"{self.name}: neither netem nor tbf is known")

    def vanish(self) -> None:
        """As when its power fails: the others get no word of it, not even that connections are closed."""
        self.run("ip", "link", "set", "eth0", "down")
        self.end()


FEDPART = (sys.executable, "-c", "from simulations.cli.main import main; main()")


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a command on a host."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts, 10.77.0.1 and on, on a bridge in a namespace of its own; who may not make them skips."""
    with ExitStack() as made:
        try:
            switch = Namespaces("--net", begin="ip link add bridge type bridge && ip link set bridge up")
            made.callback(switch.end)
            computers = []
            for number in range(1, count + 1):
                computers.append(Host(f"host-{number}", f"10.77.0.{number}"))
                made.callback(computers[-1].end)
                _connect(switch, computers[-1], number)
        except (PermissionError, FileNotFoundError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            pytest.skip(f"NAMESPACES ARE NOT ALLOWED HERE, so nothing is tried on several hosts ({why})")
        yield computers


def _connect(switch: Namespaces, host: Host, number: int) -> None:
    port = f"port{number}"
    for words in (
        f"ip link add {port} type veth peer name eth0 netns {host.pid}",
        f"ip link set {port} master bridge up",
    ):
        command = ["nsenter", "--target", str(switch.pid), "--net", *words.split()]
        subprocess.run(command, check=True, capture_output=True, text=True)
    for words in (f"ip addr add {host.address}/24 dev eth0", "ip link set eth0 up"):
        subprocess.run(host.command(*words.split()), check=True, capture_output=True, text=True)


def start_ray(computers: list[Host], cores: int = 1) -> str:
    """A Ray cluster over the hosts, the first one its head; the address to join it at."""
    head, address = computers[0], f"{computers[0].address}:6379"
    for host in computers:
        role = ["--head", "--port=6379"] if host is head else [f"--address={address}"]
        health = {f"RAY_health_check_{name}": "1000" for name in HEALTH}
        own = (f"--node-ip-address={host.address}", f"--num-cpus={cores}", "--object-store-memory=100000000")
        host.run(
            "ray", "start", *role, *own, "--disable-usage-stats", RAY_free_objects_batch_size="1", **health
        )
    total = f"/{cores * len(computers)}.0 CPU"
    until(
        lambda: total in head.run("ray", "status", "--address", address),
        60.0,
        f"a cluster of {len(computers)}",
    )
    return address


def until(true, seconds: float, what: str) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.2)
