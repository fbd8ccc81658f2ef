"""Runs that are killed go on: over Flower with a checkpoint from the beginning; with what clients keep."""

import multiprocessing
import os
import signal
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from interruptions import DiesAfter, kill
from sizes import TWO
from tiny import same_run, tiny

from fedpart.engines import LocalEngine
from simulations.building.experiment import build
from simulations.folders import run_directory
from simulations.folders.run_directory import CHECKPOINT, RESIDUALS, RunDirectory, saved_config
from simulations.running import recorder
from simulations.running.recorder import caught_signals
from simulations.running.run import run_experiment

CONFIG = tiny(engine="flower", rounds=4, checkpoint_every=100)


class Killed(BaseException):
    pass


class Dying:
    """Runs clients in this process, and dies after so many rounds, once their reports are written."""

    workers = 1

    def __init__(self, experiment, federation, after):
        self.inner, self.after = LocalEngine(federation, experiment.shards), after

    def run(self, rounds, on_round):
        def then(report):
            on_round(report)
            if report.round == self.after:
                raise Killed

        if self.after == 0:
            raise Killed
        self.inner.run(rounds, then)


def run(out, after=None, **more):
    return run_experiment(CONFIG, out, engine=lambda *made: nullcontext(Dying(*made, after)), **more)


@pytest.fixture
def writing(monkeypatch):
    """How long a checkpoint takes to write, in seconds."""
    seconds, moment = [0.0], [0.0]

    def monotonic():
        moment[0] += seconds[0]
        return moment[0]

    clock = SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter)
    monkeypatch.setattr(recorder, "time", clock)
    return seconds


@pytest.mark.parametrize(("seconds", "after", "kept"), [(0.0, 0, 0), (0.0, 2, 2), (1e9, 2, 0)])
def test_a_run_that_is_killed_goes_on_from_its_last_checkpoint(tmp_path, writing, seconds, after, kept):
    writing[0] = seconds
    with pytest.raises(Killed):
        run(tmp_path / "killed", after)
    state = build(CONFIG).start()
    state.load(tmp_path / "killed" / CHECKPOINT)
    assert state.completed == kept
    run(tmp_path / "killed", resume=True)
    run(tmp_path / "calm")
    same_run(tmp_path / "killed", tmp_path / "calm")


def test_a_simulated_run_has_its_checkpoints_where_they_are_wanted(tmp_path, writing):
    config = tiny(rounds=3, checkpoint_every=2)
    seen = []

    def watch(line):
        seen.append((tmp_path / "run" / CHECKPOINT).exists())

    run_experiment(config, tmp_path / "run", watch=watch)
    assert seen == [False, True, True]


def test_who_goes_on_waits_for_who_is_leaving(tmp_path, monkeypatch):
    first = RunDirectory.create(tmp_path, CONFIG)
    monkeypatch.setattr(run_directory.time, "sleep", lambda seconds: first.close())
    with pytest.raises(FileExistsError, match="Another process"):
        RunDirectory.reopen(tmp_path, CONFIG)
    RunDirectory.reopen(tmp_path, CONFIG, patience=60.0).close()


def test_a_signal_in_the_middle_of_a_write_is_noted():
    """What is said then goes to a file that is being written to, which takes no write within a write."""
    came = []

    def say():
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    with caught_signals(came, say):
        os.kill(os.getpid(), signal.SIGTERM)
    assert came == [signal.SIGTERM]


PLAIN = {"upload": "int4", "error_feedback": True, "download": "bf16"}
CLOCK = {"devices": {"speed": {"lognormal": [20, 1]}, "upload": 1e6, "available": 0.9}, "overselect": 1.5}
ALL = {**PLAIN, **CLOCK, "upload": "topk", "architectures": TWO, "clip": "adaptive"}


@pytest.mark.parametrize("changes", [PLAIN, ALL], ids=["int4", "sizes, topk and a clock"])
def test_killed_and_resumed_is_the_run_that_nothing_happened_to(tmp_path, changes):
    config = tiny(**changes)
    calm, out = tmp_path / "calm", tmp_path / "killed"
    run_experiment(config, calm)
    killed = multiprocessing.get_context("fork").Process(
        target=run_experiment, args=(config, out), kwargs={"progress": DiesAfter(3, kill)}
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL and any((out / RESIDUALS).glob("*/*/*.pt"))
    run_experiment(saved_config(out), out, resume=True)
    same_run(calm, out)
