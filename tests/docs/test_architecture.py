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


def test_the_road_of_a_round_is_short():
    """The four files that it names: those that a reader follows from the cohort to Adam."""
    text = (DOCS / "architecture.md").read_text()
    (section,) = re.findall(r"## The road of a round\n(.*?)\n## ", text, re.S)
    files = set(re.findall(r"`(fedpart/[\w/]+\.py)`", section))
    assert len(files) <= 4
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) <= 1000
