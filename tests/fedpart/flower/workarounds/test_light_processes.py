"""What the processes of a federation load, and that none outlives the one that has started it."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

PATIENCE = 120.0
FORWARDING = "superlink", "supernode", "executor", "workers"


def printed(code, **environment):
    """What a Python process prints."""
    environment = {**os.environ, **environment}
    return subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).strip()


def test_a_process_that_only_forwards_messages_loads_no_torch():
    imports = "\n".join(f"import fedpart.flower.workarounds.{name}" for name in FORWARDING)
    imports += "\nimport simulations.deployment.health"
    assert printed(f"{imports}\nimport sys; print('torch' in sys.modules)") == "False"


@pytest.mark.slow
def test_what_a_worker_is_forked_with_has_started_no_thread():
    """But for OpenBLAS, which ends its own before a fork."""
    code = (
        "import importlib, os; from fedpart.flower.workarounds.workers import WARM\n"
        "for name in WARM: importlib.import_module(name)\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    assert printed(code, OPENBLAS_NUM_THREADS="1") == "1"


def test_flowers_executor_ends_when_ours_is_killed():
    code = (
        "import sys; from fedpart.flower.workarounds import executor\n"
        "executor.EXECUTOR = (sys.executable, '-c', 'import time; time.sleep(600)')\n"
        "executor.main()"
    )
    ours = psutil.Popen([sys.executable, "-c", code])
    try:
        end = time.monotonic() + PATIENCE
        while not (children := ours.children()):
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        ours.send_signal(signal.SIGKILL)
        ours.wait()
    gone, _ = psutil.wait_procs(children, timeout=PATIENCE)
    assert gone == children
