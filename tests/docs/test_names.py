"""Names say what things are: pronouns as names of variables become fewer, and no new ones come."""

import ast
from collections import Counter

from places import ROOT

PRONOUNS = {"found", "given", "one", "own", "there"}
LEFT = {
    "fedpart": 4,
    "fedpart/engines": 1,
    "fedpart/federated": 1,
    "fedpart/flower": 3,
    "fedpart/kernels": 14,
    "fedpart/methods": 2,
    "fedpart/partition": 1,
    "fedpart/task": 3,
    "simulations/building": 1,
    "simulations/config": 1,
    "simulations/deployment": 1,
    "simulations/folders": 1,
    "simulations/results": 4,
    "simulations/sweeps": 2,
}  # in each room, how many assignments are left; a room that is touched lowers its number


def room_of(path):
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: 2 if len(parts) > 2 else 1])


def assigned(text):
    """The pronouns that a file assigns to, each time."""
    names = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store) and name.id in PRONOUNS]


def test_assignments_to_pronouns_are_seen():
    text = "found, (one, x) = 1, (2, 3)\nfor own in x:\n    there = own\n[given for given in x]"
    assert sorted(assigned(text)) == ["found", "given", "one", "own", "there"]


def test_no_room_has_more_of_them_than_it_had():
    counts = Counter()
    for top in ("fedpart", "simulations", "server", "client", "benchmarks"):
        for path in (ROOT / top).rglob("*.py"):
            counts[room_of(path)] += len(assigned(path.read_text()))
    assert {room: count for room, count in counts.items() if count} == LEFT
