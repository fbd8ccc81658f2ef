"""Runs that are killed go on, over Flower, with what clients keep, on a simulated clock; what that tells."""

import io
import os
import re
import signal
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from command_line import shown
from interruptions import killed
from rich.console import Console
from sizes import TWO
from tiny import same_run, tiny

from fedpart.engines import LocalEngine
from fedpart.federated.cohorts import UPLOAD_HEADER
from fedpart.updates.defences import DEFENCES
from simulations.building.experiment import build
from simulations.errors import RunError
from simulations.folders import run_directory
from simulations.folders.run_directory import (
    CHECKPOINT,
    RESIDUALS,
    RunDirectory,
    read_metrics,
    read_summary,
    saved_config,
)
from simulations.results.curves import Run, seconds_to_accuracy
from simulations.results.report.page import write_report
from simulations.results.terminal.panel import panel
from simulations.results.terminal.progress import Progress
from simulations.running import recorder
from simulations.running.recorder import Interrupted, caught_signals
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
            self.die(report.round)

        self.die(0)
        self.inner.run(rounds, then)

    def die(self, round):
        if round == self.after:
            raise Killed


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


@pytest.mark.slow
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
    config, seen, file = tiny(rounds=3, checkpoint_every=2), [], tmp_path / "run" / CHECKPOINT
    run_experiment(config, tmp_path / "run", watch=lambda line: seen.append(file.exists()))
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
CLOCK = {"devices": {"speed": {"lognormal": [20, 1]}, "upload": 1e6, "available": 0.9}, "deadline": 2.0}
ALL = {**PLAIN, **CLOCK, "upload": "topk", "architectures": TWO, "clip": "adaptive"}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [PLAIN, ALL], ids=["int4", "sizes, topk and a clock"])
def test_killed_and_resumed_is_the_run_that_nothing_happened_to(tmp_path, changes):
    config = tiny(**changes)
    calm, out = tmp_path / "calm", tmp_path / "killed"
    run_experiment(config, calm)
    killed(config, out, 3)
    assert any((out / RESIDUALS).glob("*/*/*.pt"))
    run_experiment(saved_config(out), out, resume=True)
    same_run(calm, out)


DEVICES = {"devices": {"speed": {"lognormal": [20, 1]}, "upload": 1e6, "download": 1e6, "available": 0.9}}
LATE = {**DEVICES, "deadline": 3.0}
BUFFERED = {**DEVICES, "buffer": 2}


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    folder, console = tmp_path_factory.mktemp("late") / "run", Console(width=200, file=io.StringIO())
    run_experiment(tiny(**LATE), folder, progress=Progress(console))
    return folder, console.file.getvalue() + shown(panel(read_summary(folder), folder))


def test_files_and_terminal_tell_the_simulated_time(late):
    folder, told = late
    lines, summary = read_metrics(folder), read_summary(folder)
    ends = [line["simulated_seconds"] for line in lines]
    assert ends == sorted(ends) and ends[0] > 0 and summary["simulated_seconds"] == ends[-1]
    assert summary["refused"]["late"] == sum(len(line["cohort"]) - line["replies"] for line in lines) > 0
    assert summary["simulated_seconds_to"] == seconds_to_accuracy(lines)
    assert f"{ends[-1]:,.1f} simulated s" in told and "on the simulated clock" in told
    assert all("staleness" not in line for line in lines)
    whole = (4 * summary["parameters"]["trained"] + UPLOAD_HEADER) * sum(line["replies"] for line in lines)
    assert summary["upload_ratio"] == sum(line["upload_bytes"] for line in lines) / whole


@pytest.mark.slow
def test_the_answers_are_counted_by_chunk(tmp_path):
    """Where the later chunks have slow devices, a deadline leaves them out."""
    protocol = build(tiny()).protocol
    lines = [f"{client},{1e9 if protocol.chunk(client) == 1 else 1},1e9,1e9" for client in range(6)]
    (tmp_path / "trace.csv").write_text("client,speed,upload,download\n" + "\n".join(lines))
    late = {"devices": str(tmp_path / "trace.csv"), "deadline": 1.0}
    assert run_experiment(tiny(**late), tmp_path / "late")["answers_chunks"] == [1.0, 0.0, 0.0]
    del late["deadline"]
    found = run_experiment(tiny(**late), tmp_path / "all")
    cohorts = [client for line in read_metrics(tmp_path / "all") for client in line["cohort"]]
    expected = [sum(protocol.chunk(client) == k for client in cohorts) / 15 for k in (1, 2, 3)]
    assert found["answers_chunks"] == pytest.approx(expected) and min(expected) > 0
    assert found["psi"] != read_summary(tmp_path / "late")["psi"]


@pytest.mark.slow
def test_the_page_draws_over_simulated_time(late, tmp_path):
    html = write_report(late[0], tmp_path / "page.html").read_text()
    assert "Validation accuracy over simulated time" in html and "simulated time [s]" in html
    assert re.search(r"partitioned, seed 0: .* Answers by chunk: \d+%; \d+%; \d+%\.", html)
    run = Run.load(late[0])
    assert run.along("time").tolist() == [line["simulated_seconds"] for line in run.metrics]
    run_experiment(tiny(rounds=1), tmp_path / "plain")
    assert "simulated" not in write_report(tmp_path / "plain").read_text().lower()


def test_the_time_to_an_accuracy_is_that_of_the_first_evaluation_that_finds_it():
    scores = [(1.0, None), (2.0, 0.55), (3.0, None), (4.0, 0.81), (5.0, 0.58), (6.0, 0.9)]
    lines = [{"simulated_seconds": at, "val_accuracy": found} for at, found in scores]
    del lines[2]["val_accuracy"]
    assert seconds_to_accuracy(lines) == {"0.5": 2.0, "0.6": 4.0, "0.7": 4.0, "0.8": 4.0, "0.9": 6.0}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [LATE, BUFFERED])
def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(tmp_path, changes):
    def stop(line):
        if line["round"] == 3:
            raise Interrupted(2, "round 3")

    run_experiment(tiny(**changes), tmp_path / "whole")
    with pytest.raises(Interrupted):
        run_experiment(tiny(**changes), tmp_path / "run", watch=stop)
    run_experiment(tiny(**changes), tmp_path / "run", resume=True)
    same_run(tmp_path / "run", tmp_path / "whole")


class NoNumber(DEFENCES["median"]):
    def combine(self, values, memory):
        return values[0] / 0 * 0


def test_a_step_that_makes_no_numbers_ends_a_run_in_one_sentence_and_is_not_saved(tmp_path):
    config = tiny(weighting="uniform", defence=f"{__name__}:NoNumber", checkpoint_every=1)
    with pytest.raises(RunError, match=r"^Round 1 has made weights or psi NaN .* mend the defence '.*'\.$"):
        run_experiment(config, tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()
