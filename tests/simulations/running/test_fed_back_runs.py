"""Runs in a folder whose clients keep what their codec loses."""

import multiprocessing
import signal

import pytest
from interruptions import DiesAfter, kill
from sizes import TWO
from tiny import same_run, tiny

from simulations.folders.run_directory import RESIDUALS, saved_config
from simulations.running.run import run_experiment

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
