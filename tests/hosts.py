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
GROUPS = Path("/sys/fs/cgroup")
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


class Group:
    """Control groups (v1) that count a host's processors, and bound them and its memory; where there are none
    it is empty.
    """

    def __init__(self, name: str, cores: float | None, memory: int | None) -> None:
        self.folders = [
            GROUPS / kind / f"fedpart-{os.getpid()}-{name}" for kind in ("cpu", "cpuacct", "memory")
        ]
        try:
            for folder in self.folders:
                folder.mkdir()
        except OSError:
            self.folders = []
            return
        cpu, _, held = self.folders
        if cores is not None:
            (cpu / "cpu.cfs_quota_us").write_text(str(int(100_000 * cores)))
        if memory is not None:
            (held / "memory.limit_in_bytes").write_text(str(memory))

    def command(self, *words: str) -> list[str]:
        """What runs a command in it."""
        enter = "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in self.folders)
        return ["sh", "-c", f'{enter}exec "$@"', "sh", *words]

    def seconds(self) -> float:
        """Of processors, that its processes have had."""
        return int((self.folders[1] / "cpuacct.usage").read_text()) / 1e9

    def end(self) -> None:
        """Take it away, once its processes have ended; it may be gone."""
        folders, self.folders = self.folders, []
        for folder in folders:
            inside = folder / "cgroup.procs"
            until(lambda inside=inside: not inside.read_text(), 30.0, f"nothing runs in {folder}")
            folder.rmdir()


class Host(Namespaces):
    """A computer; ``address`` is its own in the hosts' network; ``cores`` and ``memory`` (bytes) bound it."""

    def __init__(
        self, name: str, address: str, cores: float | None = None, memory: int | None = None
    ) -> None:
        self.group = Group(name, cores, memory)
        kinds = ("--net", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc")
        super().__init__(*kinds, begin=f"hostname {name} && {_OWN}")
        self.name, self.address = name, address

    def command(self, *words: str | Path) -> list[str]:
        """What runs a command there."""
        spaces = ("--net", "--pid", "--mount", "--uts", "--", "env", f"--chdir={os.getcwd()}")
        return self.group.command("nsenter", "--target", str(self.pid), *spaces, *map(str, words))

    def end(self) -> None:
        super().end()
        self.group.end()

    def sent(self) -> int:
        """Bytes that it has sent to the others."""
        (line,) = [row for row in self.run("cat", "/proc/net/dev").splitlines() if "eth0:" in row]
        return int(line.partition(":")[2].split()[8])

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
def hosts(count: int, cores: float | None = None, memory: int | None = None) -> Iterator[list[Host]]:
    """So many hosts of these bounds, 10.77.0.1 and on, on a bridge in a namespace of its own.

    Who may not make them skips.
    """
    with ExitStack() as made:
        try:
            switch = Namespaces("--net", begin="ip link add bridge type bridge && ip link set bridge up")
            made.callback(switch.end)
            computers = []
            for number in range(1, count + 1):
                computers.append(Host(f"host-{number}", f"10.77.0.{number}", cores, memory))
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
