"""The picture of the house: its rooms from the top down, and a dot where a room imports one below it.

``python docs/house.py`` writes ``docs/house.svg``.
"""

from __future__ import annotations

import ast
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from import_graph import edges, floors_of, rooms  # noqa: E402

ROW, NAME, SAYS, EDGE = 22, 96, 560, 14  # in pixels: of a room, its name, its sentence, and around all


def sentence(room: str) -> str:
    """What a room is for: the first line of its ``__init__.py``."""
    text = (_folder(room) / "__init__.py").read_text()
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0].partition(": ")[2]


def picture() -> str:
    """The drawing, as SVG."""
    order = [
        room for room in floors_of("fedpart/test_floors.py")[::-1] if "." in room and _folder(room).is_dir()
    ]
    known = {
        name: {used for used in targets if _in(used, order)} for name, targets in edges("fedpart").items()
    }
    graph = rooms({name: targets for name, targets in known.items() if _in(name, order)}, order)
    left, height = EDGE + NAME + SAYS, EDGE * 2 + ROW * (len(order) + 1)
    width = left + ROW * len(order) + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, room in enumerate(order):
        top, across = EDGE + ROW * (number + 1), left + ROW * number
        shade = "#eef3f8" if number % 2 else "#f8fafc"
        parts += [
            f'<rect x="{EDGE}" y="{top}" width="{width - 2 * EDGE}" height="{ROW}" fill="{shade}"/>',
            f'<rect x="{across}" y="{top}" width="{ROW}" height="{ROW}" fill="#c8d6e5"/>',
            f'<text x="{EDGE + 6}" y="{top + 15}" font-weight="bold">{room.partition(".")[2]}</text>',
            f'<text x="{EDGE + NAME}" y="{top + 15}" fill="#444">{escape(_short(sentence(room)))}</text>',
            f'<text x="{across + ROW / 2}" y="{EDGE + 14}" text-anchor="middle" fill="#444" font-size="8">'
            f"{room.partition('.')[2][:4]}</text>",
        ]
        for below in sorted(graph[room], key=order.index):
            at = left + ROW * order.index(below) + ROW / 2
            parts.append(f'<circle cx="{at}" cy="{top + ROW / 2}" r="5" fill="#2c5d8f"/>')
    return "\n".join([*parts, "</svg>\n"])


def _folder(room: str) -> Path:
    return ROOT.joinpath(*room.split("."))


def _in(module: str, order: list[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in order)


def _short(text: str, most: int = 88) -> str:
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."


if __name__ == "__main__":
    (ROOT / "docs" / "house.svg").write_text(picture())
