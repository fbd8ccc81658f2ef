"""The flwr command as a user types it, in a home of its own and without a network."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from simulations.deployment.processes import free_ports

FLWR = """
from flwr.cli import local_superlink
from flwr.cli.app import app
local_superlink.LOCAL_SUPERLINK_STARTUP_TIMEOUT = 300.0  # it is 15 s, too few where other tests run
app()
"""


@contextmanager
def flwr_command(app: Path, python: Path, home: Path) -> Iterator[Callable[..., subprocess.CompletedProcess]]:
    """Runs flwr in the folder ``app``, and stops the SuperLink that it leaves; ``home`` is Flower's."""
    environment = {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_ports(1)[0]),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_ADDRESS": "local",  # a cluster of its own, though another test's runs on this machine
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }

    def call(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [python, "-c", FLWR, *arguments],
            cwd=app,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    try:
        yield call
    finally:
        listed = subprocess.run(["ps", "-axww", "-o", "pid=,command="], capture_output=True, text=True).stdout
        for line in listed.splitlines():
            if "flower-superlink" in line and str(home) in line:
                os.kill(int(line.split()[0]), signal.SIGTERM)
