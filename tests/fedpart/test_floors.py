"""The library's rooms stand on floors: nothing imports upward, and no files import each other in a circle."""

import pytest
from import_graph import circles, edges, rooms, upward

# The lowest first; a room may import those before it.
FLOORS = [
    "fedpart.extras",
    "fedpart.checks",
    "fedpart.registry",
    "fedpart.trees",
    "fedpart.kernels",
    "fedpart.randomness",
    "fedpart.loggers",
    "fedpart.nn",
    "fedpart.partition",
    "fedpart.data",
    "fedpart.task",
    "fedpart.training",
    "fedpart.updates",
    "fedpart.methods",
    "fedpart.centralised",
    "fedpart.federated",
    "fedpart.engines",
    "fedpart.flower",
    "fedpart.api",
    "fedpart",
]


@pytest.fixture(scope="module")
def graph():
    return edges("fedpart")


def test_no_files_import_each_other_in_a_circle(graph):
    assert not circles(graph)


def test_nothing_imports_upward(graph):
    assert not upward(graph, FLOORS)


def test_what_nobody_else_may_know(graph):
    users = {room: {user for user, used in rooms(graph, FLOORS).items() if room in used} for room in FLOORS}
    assert users["fedpart.flower"] == set()
    assert "fedpart.engines" not in rooms(graph, FLOORS)["fedpart.methods"]
