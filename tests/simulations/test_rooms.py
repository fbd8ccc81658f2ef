"""The rooms of simulations stand on floors: no import leads up, and none runs in a circle."""

import pytest
from import_graph import circles, edges, room_of, upward

# From the lowest up: a room may import those before it, for types or inside of a function too.
FLOORS = [
    "simulations.errors",
    "simulations.pretraining",
    "simulations.attacks",
    "simulations.config",
    "simulations.folders",
    "simulations.building",
    "simulations.results",
    "simulations.flower",
    "simulations.ray",
    "simulations.running",
    "simulations.sweeps",
    "simulations.deployment",
    "simulations.cli",
]


@pytest.fixture(scope="module")
def graph():
    found = edges("simulations")
    assert found.pop("simulations") == set()
    return found


def test_every_room_has_its_floor(graph):
    assert {room_of(module, FLOORS) for module in graph} == set(FLOORS)


def test_nothing_imports_upward(graph):
    assert upward(graph, FLOORS) == []


def test_no_files_import_each_other_in_a_circle(graph):
    assert circles(graph) == []
