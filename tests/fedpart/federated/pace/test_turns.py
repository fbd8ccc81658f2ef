"""Whom a step waits for: closed forms of rounds with a deadline, and of buffers, without any training."""

import math
import statistics
from functools import partial

import numpy as np
import pytest
import refusals
import torch
from problems import settings

from fedpart import ClipSettings, DeviceSettings, PrivacySettings
from fedpart.federated.pace.devices import Device, Fleet
from fedpart.federated.pace.turns import Buffered, Group, Synchronous


def pace(kind, cohort=3, available=1.0, **changes):
    devices = DeviceSettings(available=available)
    buffer = {"buffer": cohort} if kind is Buffered else {}
    chosen = settings(10, cohort=cohort, devices=devices, **{**buffer, **changes})
    return kind(chosen, cohort, Fleet(devices, 10, 0))


def lowest(round, available=None, *, size=None, without=(), turn=0):
    """Draws the lowest numbers that it may."""
    pool = range(10) if available is None else available
    return [client for client in pool if client not in without][:size]


def turns(one, count, seconds):
    """So many of them, one after another; seconds by client."""
    found = []
    for round in range(1, count + 1):
        found.append(one.turn(round, lowest, seconds.get))
        one.commit(found[-1], torch.zeros(2), torch.zeros(1))
    return found


def test_a_round_takes_as_long_as_its_slowest_client_and_the_first_to_answer_are_taken():
    one, other = turns(pace(Synchronous), 2, {0: 1.0, 1: 5.0, 2: 2.0})
    assert one.groups == [Group(1, [0, 1, 2])] and one.late == []
    assert (one.ends, other.ends) == (5.0, 10.0)
    seconds = {0: 4.0, 1: 1.0, 2: 3.0, 3: 9.0, 4: 3.0}
    (turn,) = turns(pace(Synchronous, cohort=2, overselect=2.1), 1, seconds)
    assert turn.cohort == [0, 1, 2, 3, 4] and len(turn.asked) == 5, "2 x 2.1, rounded up"
    assert turn.groups == [Group(1, [1, 2])] and turn.ends == 3.0
    assert turn.late == [(0, 4.0), (3, 9.0), (4, 3.0)]


@pytest.mark.parametrize(
    ("deadline", "kept", "took"), [(0.5, [], 0.5), (2.0, [1], 2.0), (3.9, [1, 2], 3.9), (4.0, [0, 1, 2], 4.0)]
)
def test_a_deadline_drops_exactly_who_comes_after_it(deadline, kept, took):
    (turn,) = turns(pace(Synchronous, deadline=deadline), 1, {0: 4.0, 1: 1.0, 2: 3.0})
    assert turn.groups == ([Group(1, kept)] if kept else [])
    assert [client for client, _ in turn.late] == sorted({0, 1, 2} - set(kept))
    assert turn.ends == took, "the server waits for those that are missing until then"


def test_a_full_buffer_steps_who_has_answered_makes_room_and_ties_go_by_number():
    """Client 0 takes 1 s, 1 takes 3 s, 2 takes 2 s: the answers come at 1 (0), 3 (1) and 3 (2)."""
    seconds = {0: 1.0, 1: 3.0, 2: 2.0, 3: 9.0}
    one, other = turns(pace(Buffered, cohort=2), 2, seconds)
    assert one.groups == [Group(1, [0, 1])] and one.ends == 3.0 and len(one.asked) == 3
    assert one.staleness == 0
    # 2 has started at 1 s from the first values; at 3 s it is taken before 0 starts from the second ones
    assert other.groups == [Group(1, [2]), Group(2, [0])]
    assert other.ends == 4.0 and other.staleness == 0.5 and len(other.asked) == 2
    one = pace(Buffered, cohort=3, concurrency=3, buffer=2)
    found = turns(one, 3, dict.fromkeys(range(10), 1.0))
    assert [turn.groups for turn in found[:2]] == [[Group(1, [0, 1])], [Group(1, [2]), Group(2, [0])]]
    assert [turn.ends for turn in found] == [1.0, 2.0, 2.0]


def test_stale_answers_are_scaled_down():
    one = pace(Buffered, cohort=2, buffer=1, staleness="sqrt")
    found = turns(one, 4, {0: 1.0, 1: 3.5})
    groups = [group for turn in found for group in turn.groups]
    assert [(group.round, group.clients) for group in groups] == [(1, [0]), (2, [0]), (3, [0]), (1, [1])]
    assert [group.scale for group in groups] == [1.0, 1.0, 1.0, 0.5], "1 / sqrt(1 + 3)"


def test_values_are_kept_for_those_who_started_from_them_and_a_turn_changes_nothing_until_committed():
    one, seconds = pace(Buffered, cohort=2, buffer=1), {0: 1.0, 1: 3.5}
    for round in range(1, 5):
        w = torch.full((2,), float(round))
        one.commit(one.turn(round, lowest, seconds.get), w, w)
        w.zero_()  # the server steps in place
        held = one.values(1)
        assert held is None if round == 4 else torch.equal(held[0], torch.ones(2))
    assert len(one.state_dict()["pace"]["under_way"]) == 1
    one, seconds = pace(Buffered, cohort=2), {0: 1.0, 1: 3.0, 2: 2.0, 3: 9.0}
    assert one.turn(1, lowest, seconds.get) == one.turn(1, lowest, seconds.get)
    assert one.now == 0 and one.state_dict()["pace"]["under_way"] == []


def test_nobody_is_asked_who_is_not_there():
    for kind in (Synchronous, Buffered):
        one = pace(kind, available=0.3)
        there = Fleet(DeviceSettings(available=0.3), 10, 0).available
        found = turns(one, 12, dict.fromkeys(range(10), 1.0))
        assert {len(turn.cohort) for turn in found} > {3}, "fewer where too few are there"
        for turn in found:
            assert all(set(group.clients) <= set(there(group.round)) for group in turn.groups)


def fleet(clients=400, seed=0, **devices):
    return Fleet(DeviceSettings(**devices), clients, seed)


def speeds(clients=400, seed=0, **devices):
    found = fleet(clients, seed, **devices)
    return [found.device(client).speed for client in range(clients)]


def test_a_clients_time_is_that_of_its_messages_and_examples_and_draws_are_its_own():
    assert Device(speed=50, upload=200, download=1000).seconds(3000, 75, 100) == 3 + 1.5 + 0.5
    assert fleet(speed=4).device(9).seconds(10**9, 6, 10**9) == 1.5, "what is not given takes no time"
    assert set(speeds(speed=3)) == {3.0}
    drawn = {"lognormal": (100, 0.5)}
    assert speeds(speed=drawn) == speeds(speed=drawn) != speeds(speed=drawn, seed=1)
    assert len(set(speeds(speed=drawn))) == 400
    device = fleet(speed=drawn, upload=drawn).device(5)
    assert device.speed != device.upload and device.download == math.inf


def test_distributions_are_what_their_names_say():
    logs = [math.log(speed) for speed in speeds(speed={"lognormal": (100, 0.5)})]
    assert statistics.mean(logs) == pytest.approx(math.log(100), abs=4 * 0.5 / 20)
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.2)
    even = speeds(speed={"uniform": (10, 30)})
    assert 10 <= min(even) < 11 and 29 < max(even) <= 30
    assert statistics.mean(even) == pytest.approx(20, abs=4 * 20 / math.sqrt(12 * 400))
    tail = speeds(speed={"pareto": (100, 2)})
    slower = [sum(speed < 100 / x for speed in tail) / 400 for x in (1, 2, 4)]
    assert slower == pytest.approx([1, 1 / 4, 1 / 16], abs=0.07)


def test_a_client_is_there_in_its_share_of_the_rounds():
    assert fleet(available=1.0).available(3) is None
    found = fleet(available=0.3)
    rounds = [set(found.available(round)) for round in range(1, 41)]
    assert rounds[4] == set(fleet(available=0.3).available(5)) != rounds[5]
    shares = [sum(client in there for there in rounds) / 40 for client in range(400)]
    assert statistics.mean(shares) == pytest.approx(0.3, abs=0.02)
    assert max(shares) < 0.75, "every round anew"


TRACE = "client,speed,upload,download,available\n1,50,2e3,4e3,0.25\n0,100,1e3,8e3,\n7,1,1,1,1\n"


def less(rng, value):
    return np.float64(value - 1)


def test_a_trace_is_read_back_and_a_distribution_of_ones_own_draws_numbers_above_0(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    found = Fleet(str(path), 2, 0)
    assert [found.device(client) for client in (0, 1)] == [Device(100, 1e3, 8e3), Device(50, 2e3, 4e3, 0.25)]
    there = [found.available(round) for round in range(1, 201)]
    assert all(0 in clients for clients in there)
    assert sum(1 in clients for clients in there) == pytest.approx(50, abs=25)
    none = fleet(3, speed={"test_turns:less": (1.0,)})
    with pytest.raises(ValueError, match=r"devices.speed of client 1 is 0.0; let test_turns:less draw"):
        none.device(1)
    some = fleet(3, speed={"test_turns:less": (3.0,)})
    assert type(some.device(1).speed) is float


DEVICES = [
    ({"speed": 0.0}, "devices.speed is a number above 0, or a distribution, got 0.0"),
    ({"upload": {"zipf": (1.0,)}}, "Unknown distribution 'zipf'"),
    ({"upload": {"pareto": (1.0,)}}, r"takes positive numbers \[fastest, alpha\], got \[1.0\]"),
    ({"upload": {"pareto": (1.0, -2.0)}}, r"got \[1.0, -2.0\]"),
    ({"download": {}}, "devices.download has one distribution, got 0"),
    ({"available": 0.0}, "available is above 0 and at most 1, got 0.0"),
]
TRACES = [
    ("client,speed,upload\n0,1,1\n", "no column 'download'"),
    (TRACE.replace("50", "fast"), "line 2: could not convert"),
    (TRACE.replace("50", "-1"), "line 2 has a number out of range"),
    (TRACE.replace("50", "nan"), "line 2 has a number out of range"),
    (TRACE.replace("0.25", "1.5"), "line 2 has a number out of range"),
    (TRACE.replace("7,", "0,"), "line 4 is of client 0 again"),
    (TRACE.replace("1,50", "2,50"), "no line for client 1, one of 1; give every client"),
    ("", "no column 'client'"),
]


def test_devices(tmp_path):
    rows = [(f"{devices}", partial(DeviceSettings, **devices), f"{says}.*\\.$") for devices, says in DEVICES]
    for number, (text, says) in enumerate(TRACES):
        path = tmp_path / f"{number}.csv"
        path.write_text(text)
        fleet = partial(Fleet, str(path), 2, 0)
        rows.append((repr(text), fleet, f"^The trace .*{says}.*\\.$"))
    refusals.check((*row, ValueError, says) for *row, says in rows)


def test_turns():
    private = {"privacy": PrivacySettings(1.0, randomness="seed"), "weighting": "uniform"}
    private["clip"] = ClipSettings(1.0, 1.0)
    buffered = {"buffer": 4}
    trimmed = {"defence": "trim", "weighting": "uniform", **buffered}
    rows = [
        ({"deadline": 2.0}, "deadline leaves clients out by their simulated time.*set devices"),
        ({"deadline": 1.0}, "deadline leaves clients out by their simulated time.*set devices"),
        ({**buffered, "deadline": 1}, "deadline is for rounds that wait for their cohort"),
        ({"overselect": 1.5}, "overselect leaves clients out.*set devices"),
        ({"devices": 3}, "devices is one of DeviceSettings"),
        ({"concurrency": 3}, "concurrency is for steps with the first answers; set buffer, or leave"),
        ({"staleness": "sqrt"}, "staleness is for steps with the first answers"),
        ({"devices": DeviceSettings(), **private}, "Privacy keeps the cohorts secret.*devices would"),
        ({**buffered, **private}, "Privacy .* buffer would tell"),
        (trimmed, "A defence compares .* leave defence or buffer out"),
        ({"deadline": 2.0, **buffered}, "deadline is for rounds that wait"),
        ({"buffer": 11}, r"buffer is between 1 and .* \(10\), got 11"),
        ({"concurrency": 11, **buffered}, r"concurrency is between 1 and .* \(10\), got 11"),
        ({"buffer": 1, "min_replies": 2}, "a step takes 1 answers; set buffer"),
    ]
    refusals.check_keywords(partial(settings, 10, cohort=4), ((row, f"{says}.*\\.$") for row, says in rows))
