"""The import graph sees every way in which one module can name another."""

from pathlib import Path

import pytest
from import_graph import circles, edges, room_of, rooms, upward

FILES = {
    "house/__init__.py": "",
    "house/low/__init__.py": "from .stones import stone",
    "house/low/stones.py": "import json\nstone = 1",
    "house/low/lazy.py": "def f():\n    from house.high import roof\n",
    "house/high/__init__.py": "",
    "house/high/roof.py": "from ..low import stone\nfrom ..low.stones import stone as other",
    "house/high/typed.py": "import typing\nif typing.TYPE_CHECKING:\n    import house.high.window",
    "house/high/window.py": "from house.high.typed import T\nfrom elsewhere import house",
}
FLOORS = ["house.low", "house.high"]


@pytest.fixture
def graph(tmp_path: Path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = edges("house", root=tmp_path)
    assert found.pop("house") == set()
    return found


def test_lazy_relative_and_type_only_imports_are_seen(graph):
    assert graph == {
        "house.low": {"house.low.stones"},
        "house.low.stones": set(),
        "house.low.lazy": {"house.high.roof"},
        "house.high": set(),
        "house.high.roof": {"house.low", "house.low.stones"},
        "house.high.typed": {"house.high.window"},
        "house.high.window": {"house.high.typed"},
    }


def test_circles_and_what_leads_up(graph):
    assert circles(graph) == [["house.high.typed", "house.high.window"]]
    assert upward(graph, FLOORS) == ["house.low.lazy imports house.high.roof"]
    assert rooms(graph, FLOORS) == {"house.low": {"house.high"}, "house.high": {"house.low"}}


def test_a_room_without_a_floor_is_named(graph):
    with pytest.raises(LookupError, match=r"house\.higher\.attic is in no room"):
        room_of("house.higher.attic", FLOORS)
