"""Runs in a folder whose clients keep what their codec loses."""

import multiprocessing
import signal

from interruptions import DiesAfter, kill
from tiny import same_run, tiny

from simulations.folders.run_directory import RESIDUALS, saved_config
from simulations.running.run import run_experiment

CONFIG = tiny(upload="int4", error_feedback=True, download="bf16")


def test_killed_and_resumed_is_the_run_that_nothing_happened_to(tmp_path):
    calm, out = tmp_path / "calm", tmp_path / "killed"
    run_experiment(CONFIG, calm)
    killed = multiprocessing.get_context("fork").Process(
        target=run_experiment, args=(CONFIG, out), kwargs={"progress": DiesAfter(3, kill)}
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL and any((out / RESIDUALS).glob("*/*/*.pt"))
    run_experiment(saved_config(out), out, resume=True)
    same_run(calm, out)
