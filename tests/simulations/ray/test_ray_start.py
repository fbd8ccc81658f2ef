"""Ray starts while the experiment is built, and a run is stopped: what happens meanwhile ends in order."""

import math
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from types import SimpleNamespace

import held
import pytest
from command_line import begun
from tiny import tiny

from simulations.errors import ConfigError
from simulations.folders.run_directory import read_metrics
from simulations.ray import engine


class Grid:
    """A grid whose start is over."""

    workers, until, closed = 2, math.inf, 0

    def __init__(self, *arguments, **where):
        self.arguments, self.where = arguments, where

    def close(self):
        self.closed += 1


def test_a_run_that_is_stopped_before_ray_is_there_waits_for_no_client():
    starting = Future()
    made = engine.RayEngine(SimpleNamespace(config=tiny(), shards=[]), SimpleNamespace(), starting)
    made.stop()
    starting.set_result(grid := Grid())
    with made:
        assert grid.until < math.inf
    assert grid.closed == 1


KEEPING = [{"method": "scaffold"}, {"method": "ditto"}, {"upload": "int4", "error_feedback": True}]


@pytest.mark.parametrize("keeping", KEEPING, ids=str)
def test_what_clients_keep_is_not_left_on_hosts_of_a_cluster(monkeypatch, tmp_path, keeping):
    monkeypatch.setattr(engine, "RayGrid", Grid)
    monkeypatch.setenv(engine.ADDRESS, "host:1")
    with pytest.raises(ConfigError, match="do not find them"):
        engine.starting(tiny(engine="ray", **keeping), tmp_path).__enter__()


@pytest.mark.parametrize("fails", [False, True])
def test_ray_ends_though_nobody_has_entered_the_engine(monkeypatch, tmp_path, fails):
    grids = []
    monkeypatch.setattr(
        engine, "RayGrid", lambda *args, **where: grids.append(Grid(*args, **where)) or grids[0]
    )
    try:
        with engine.starting(tiny(engine="ray", workers=2), tmp_path):
            if fails:
                raise ValueError("The data are gone.")
    except ValueError:
        assert fails
    assert grids[0].closed == 1
    assert grids[0].where == {"workers": 2, "address": None, "gpu": False}


def wait_until(happened, process):
    end = time.monotonic() + 300
    while not happened():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.1)


@pytest.mark.slow
def test_the_run_ends_with_a_checkpoint_though_its_clients_do_not_answer(tmp_path):
    """In a folder with a server.py and a client.py of the user's, which its processes leave alone."""
    held.configuration(tmp_path, workers=1)
    for name in ("server.py", "client.py"):
        (tmp_path / name).write_text("raise AssertionError('this is not for it')")
    apart = {"cwd": tmp_path, "stderr": subprocess.PIPE, "start_new_session": True}
    process = begun("run", "held.yaml", "--out", "run", paths=os.pathsep.join(sys.path), **apart)
    try:
        lines = tmp_path / "run/metrics.jsonl"
        wait_until(lambda: lines.is_file() and len(lines.read_text().splitlines()) > 1, process)
        (tmp_path / "held").touch()
        os.killpg(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, errors
    after = re.search(r"Stopped after round (\d+); continue with: fedpart run --resume run", errors)
    assert after and int(after[1]) == len(read_metrics(tmp_path / "run")) >= 2, errors
    assert (tmp_path / "run/checkpoint.pt").is_file() and not (tmp_path / "run/summary.json").exists()
