"""execution: auto, which chooses by device and run."""

import re

import pytest
from problems import CLASSES, SIZE, Branching, after, assert_near, chain_net, settings, shards
from torch import nn

from fedpart import Federation, LocalSettings, Protocol, Task
from fedpart.engines import LocalEngine, automatic
from fedpart.engines.local import Loop

SIZES = (7, 12, 3, 9)
SEVERAL = {"local": LocalSettings(batch_size=4)}


class Last(nn.Module):
    def forward(self, given):
        return given[0]


def recurrent():
    return nn.Sequential(nn.Flatten(1), nn.LSTM(SIZE**2, CLASSES), Last())


def protocol_of(network, **changes):
    return Protocol(Task(network, samples=1), settings(len(SIZES), cohort=3, **changes))


def engine_of(*given, **changes):
    return LocalEngine(Federation(protocol_of(*given, **changes)), shards(SIZES))


def test_clients_are_computed_one_after_another_on_a_cpu():
    engine = engine_of(chain_net())
    assert isinstance(engine.clients, Loop) and engine.remark == ""


@pytest.mark.parametrize(
    "network, changes, remark",
    [
        (chain_net, {}, "fused."),
        (chain_net, SEVERAL, "grouped; not fused: Client 0 takes 2 steps with its 7 examples, but fused"),
        (recurrent, SEVERAL, "loop; not fused: .*; not grouped: The recurrent layer"),
    ],
    ids=["one step", "several steps", "recurrent"],
)
def test_elsewhere_the_first_way_that_takes_the_run_computes_it(monkeypatch, network, changes, remark):
    monkeypatch.setattr(automatic, "ALONE", ())
    found = engine_of(network(), **changes).remark
    assert re.match(f"Clients are computed by execution: {remark}", found), found


def test_a_way_that_refuses_a_round_is_followed_by_the_next(monkeypatch):
    expected, _ = after(2, Federation(protocol_of(Branching(), **SEVERAL)), shards(SIZES))
    monkeypatch.setattr(automatic, "ALONE", ())
    with pytest.warns(RuntimeWarning, match="loop; not fused: .* not grouped: Round 1: These clients"):
        state, _ = after(2, Federation(protocol_of(Branching(), **SEVERAL)), shards(SIZES), execution="auto")
    assert_near(state, expected, rtol=0, atol=0)
