"""The tree that docs/architecture.md shows is what ``ls`` shows, with each folder's own sentence."""

import ast
import re

from documents import DOCS, blocks
from import_graph import floors_of
from places import ROOT

TOPS = ("fedpart", "simulations", "benchmarks", "server", "client")


def tree() -> str:
    """A line a folder: its name, and the first sentence of its ``__init__.py``."""
    lines = []
    for top in TOPS:
        for file in sorted((ROOT / top).rglob("__init__.py"), key=lambda file: file.parent.parts):
            folder = file.parent.relative_to(ROOT)
            text = ast.get_docstring(ast.parse(file.read_text())) or ""
            name = "  " * (len(folder.parts) - 1) + folder.name + "/"
            lines.append(f"{name:23}{text.splitlines()[0]}")
    return "\n".join(lines) + "\n"


def test_the_tree_is_what_ls_shows():
    assert blocks(DOCS / "architecture.md")[0].text == tree()


def section(title: str) -> str:
    (found,) = re.findall(rf"## {title}\n(.*?)\n## ", (DOCS / "architecture.md").read_text(), re.S)
    return found


def test_the_floors_are_those_of_the_imports():
    shown = [
        name.removesuffix(".py")
        for row in re.findall(r"^\|([^|]*)\|", section("Floors"), re.M)[1:]
        for name in re.findall(r"`([\w.]+)`", row)
    ]
    floors = floors_of("fedpart/test_floors.py")
    assert shown == [name.removeprefix("fedpart.") for name in reversed(floors)]


def test_the_floors_of_simulations_are_those_of_the_imports():
    (row,) = re.findall(r"its rooms are (.*?), and", section("Floors"), re.S)
    shown = [name.removesuffix(".py") for name in re.findall(r"`([\w.]+)`", row)]
    floors = floors_of("simulations/test_rooms.py")
    assert shown == [name.removeprefix("simulations.") for name in reversed(floors)]


def test_the_picture_is_that_of_the_imports(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import house

    assert (DOCS / "house.svg").read_text() == house.picture(), "write it anew: python docs/house.py"


def test_the_round_that_is_shown_is_the_engines():
    shown = re.findall(r"^(\w[\w.]*.*?) +# ", section("The road of a round"), re.M)
    assert len(shown) == 4
    source = (ROOT / "fedpart/engines/local.py").read_text()
    assert all(f"        {line}\n" in source for line in shown)
