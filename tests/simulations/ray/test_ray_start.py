"""Ray starts while the experiment is built: what happens meanwhile ends it in order."""

import math
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from tiny import tiny

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
