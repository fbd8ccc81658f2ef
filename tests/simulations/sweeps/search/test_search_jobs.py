"""Several trials at a time: none is lost or doubled when the search is killed, stopped and continued."""

import io
import os
import signal

import pytest
from rich.console import Console
from test_search import begun, run, searched, trials_of

from simulations.folders.run_directory import read_metrics
from simulations.running.recorder import Interrupted
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.search.search import run_search

TRIALS = 6


class Stops(io.StringIO):
    """A screen whose reader presses Ctrl-C when a trial has ended."""

    def write(self, text):
        if "Trial " in text and "Trial " not in self.getvalue():
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def in_two(config, out, stream):
    return run_search(config, out, CellRunner(jobs=2, console=Console(file=stream, width=200)))


@pytest.mark.slow
def test_killed_stopped_and_continued_in_two_processes(tmp_path):
    """Values drawn at random follow from the number of a trial, and its run from them, whatever others do."""
    config, out = searched(sampler="random", pruner="asha", trials=TRIALS), tmp_path / "out"
    process = begun(config, out, "--jobs", "2")
    while not all((out / "trials" / name / "metrics.jsonl").exists() for name in ("000", "001")):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()  # its other processes write to the same pipe: they have ended
    with pytest.raises(Interrupted, match=r"SIGINT after [12] trial"):
        in_two(config, out, Stops())
    ended = {number for number, state, *_ in trials_of(out) if state.is_finished()}
    assert 0 < len(ended) <= 2
    screen = io.StringIO()
    found = in_two(config, out, screen)
    assert screen.getvalue().count("Trial ") == TRIALS - len(ended)

    expected = run(config, tmp_path / "one")
    assert [row.number for row in found.rows] == list(range(TRIALS))
    for row, alone in zip(found.rows, expected.rows, strict=True):
        mine, its = (
            read_metrics(folder / "trials" / f"{row.number:03d}") for folder in (out, tmp_path / "one")
        )
        assert row.values == alone.values and row.state in ("complete", "pruned")
        assert [line["round"] for line in mine] == list(range(1, len(mine) + 1))
        assert len(mine) == 6 or row.state == "pruned"
        for a, b in zip(mine, its, strict=False):
            assert (a["val_nll"], a["upload_bytes"]) == (b["val_nll"], b["upload_bytes"])
        assert row.cost.upload_bytes == sum(line["upload_bytes"] for line in mine)
        assert row.objective == (mine[-1]["val_nll"] if row.state == "complete" else None)
    assert found.spent.bytes == sum(row.cost.bytes for row in found.rows)
