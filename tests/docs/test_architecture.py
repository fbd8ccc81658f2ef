"""The tree that docs/architecture.md shows is what ``ls`` shows, with each folder's own sentence."""

import ast
import re

from documents import DOCS, blocks
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
    (floors,) = re.findall(r"FLOORS = (\[.*?\])", (ROOT / "tests/fedpart/test_floors.py").read_text(), re.S)
    rooms = [
        name.removesuffix(".py")
        for row in re.findall(r"^\|([^|]*)\|", section("Floors"), re.M)[1:]
        for name in re.findall(r"`([\w.]+)`", row)
    ]
    assert rooms == [name.removeprefix("fedpart.") for name in reversed(ast.literal_eval(floors))]


def test_the_floors_of_simulations_are_those_of_the_imports():
    file = ROOT / "tests/simulations/test_rooms.py"
    (floors,) = re.findall(r"FLOORS = (\[.*?\])", file.read_text(), re.S)
    (row,) = re.findall(r"its rooms are (.*?), and", section("Floors"), re.S)
    rooms = [name.removesuffix(".py") for name in re.findall(r"`([\w.]+)`", row)]
    assert rooms == [name.removeprefix("simulations.") for name in reversed(ast.literal_eval(floors))]


def test_a_round_is_read_in_four_files_and_500_lines():
    files = re.findall(r"^\d\. `(fedpart/[\w/]+\.py)`", section("The road of a round"), re.M)
    assert len(files) == 4
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) <= 500
