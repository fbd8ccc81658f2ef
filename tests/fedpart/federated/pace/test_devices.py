"""Simulated devices: drawn by the seed from distributions, or read from a file."""

import math
import statistics

import numpy as np
import pytest

from fedpart import DeviceSettings
from fedpart.federated.pace.devices import Device, Fleet

TRACE = "client,speed,upload,download,available\n1,50,2e3,4e3,0.25\n0,100,1e3,8e3,\n7,1,1,1,1\n"


def fleet(clients=400, seed=0, **devices):
    return Fleet(DeviceSettings(**devices), clients, seed)


def speeds(clients=400, seed=0, **devices):
    found = fleet(clients, seed, **devices)
    return [found.device(client).speed for client in range(clients)]


def written(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return str(path)


def test_a_clients_time_is_that_of_its_messages_and_its_examples():
    assert Device(speed=50, upload=200, download=1000).seconds(3000, 75, 100) == 3 + 1.5 + 0.5
    assert fleet(speed=4).device(9).seconds(10**9, 6, 10**9) == 1.5, "what is not given takes no time"


def test_numbers_are_the_same_for_all_and_draws_are_a_clients_own():
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


def test_a_trace_is_read_back(tmp_path):
    found = fleet(2, trace=written(tmp_path, TRACE))
    assert [found.device(client) for client in (0, 1)] == [Device(100, 1e3, 8e3), Device(50, 2e3, 4e3, 0.25)]
    there = [found.available(round) for round in range(1, 201)]
    assert all(0 in clients for clients in there)
    assert sum(1 in clients for clients in there) == pytest.approx(50, abs=25)


def less(rng, value):
    return np.float64(value - 1)


def test_a_distribution_of_ones_own_draws_numbers_above_0():
    none = fleet(3, speed={"test_devices:less": (1.0,)})
    with pytest.raises(ValueError, match=r"devices.speed of client 1 is 0.0; let test_devices:less draw"):
        none.device(1)
    some = fleet(3, speed={"test_devices:less": (3.0,)})
    assert type(some.device(1).speed) is float
