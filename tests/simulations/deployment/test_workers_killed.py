"""A federation whose executors and their workers are killed while they work at a message."""

import base64
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from places import ROOT

from benchmarks.checks.crash_deployed import EXPERIMENT, CheckedDeployment
from fedpart.flower.workarounds.executor import children
from simulations.config.load import ExperimentConfig
from simulations.deployment.keys import CERTIFICATE_KEY, NODE_KEY, SECRET, TOKEN
from simulations.folders.run_directory import STATE, read_metrics
from simulations.running.run import run_experiment


def read_of_processes():
    """What the command lines and environments of all processes of a federation say."""
    read = b""
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):  # it has just ended
            read += b"".join(
                Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")
            )
    return read


def secrets(keys):
    """Everything of a federation's keys that nobody else may read, as it may be written."""
    files = [file for name in (TOKEN, SECRET, NODE_KEY, CERTIFICATE_KEY) for file in keys.glob(f"*/{name}")]
    for secret in {file.read_bytes() for file in files}:
        yield from (secret, secret.hex().encode(), base64.b64encode(secret), base64.urlsafe_b64encode(secret))
        yield from secret.splitlines()[1:-1]  # of a key


@pytest.mark.deployment
@pytest.mark.slow
def test_a_worker_and_its_parent_are_killed_in_a_round_and_the_weights_are_those_of_a_calm_run(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config, out = ExperimentConfig.from_dict({**EXPERIMENT, "rounds": 4, "samples": 160}), tmp_path / "out"
    killed: list[tuple[int, int]] = []
    seen: list[bytes] = []

    with CheckedDeployment(config, tmp_path) as federation:

        def strike(over):
            for client in range(2):
                while len(read_metrics(out)) == client and not over.wait(0.01):
                    pass
                (parent,) = children(federation.processes.pid(f"clientapp-{client}"))
                (worker,) = children(parent)
                process = psutil.Process(worker)
                before = process.cpu_times().user
                while process.cpu_times().user < before + 0.1:  # it has begun with its message
                    time.sleep(0.01)
                seen.append(read_of_processes())
                os.kill([worker, parent][client], signal.SIGKILL)
                killed.append((parent, worker))

        assert federation.run(out, strike).status == "finished:completed"
        hidden = set(secrets(federation.keys))
        (first, dead), (ended, orphan) = killed
        (parent,) = children(federation.processes.pid("clientapp-0"))
        assert parent == first and dead not in children(parent)
        assert not psutil.pid_exists(orphan) and not psutil.pid_exists(ended)
    logs = b"".join(file.read_bytes() for file in (tmp_path / "logs").iterdir())
    assert len(seen) == 2 and b"flower.workarounds.superlink" in seen[0] and logs and len(hidden) > 20
    assert not [secret for secret in hidden for text in (*seen, logs) if secret in text]
    assert not any(line["skipped"] for line in read_metrics(out))
    run_experiment(config, tmp_path / "local")
    assert (out / STATE).read_bytes() == (tmp_path / "local" / STATE).read_bytes()
