"""The imports of a package, read from its source: for tests that hold rooms to their floors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

Edges = dict[str, set[str]]
"""Of every module the modules that it imports, by dotted name; a package's name is its ``__init__.py``."""


def edges(*packages: str, root: Path = ROOT) -> Edges:
    """All imports among the modules of some packages: those inside of functions and for types alone too.

    ``from package import name`` leads to the module ``package.name`` where there is one, and to ``package``
    otherwise. That importing a module runs the ``__init__.py`` of its packages too is not counted.
    """
    files = {_name(file, root): file for package in packages for file in (root / package).rglob("*.py")}
    return {
        module: {found for name in _imported(module, file) if (found := _known(name, files)) is not None}
        for module, file in files.items()
    }


def circles(edges: Edges) -> list[list[str]]:
    """The modules that import each other in a circle, a sorted list for each group of them."""
    reached = {module: _reached(module, edges) for module in edges}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in edges
        if module in reached[module]
    }
    return [list(group) for group in sorted(groups)]


def rooms(edges: Edges, floors: Sequence[str]) -> Edges:
    """The same graph between rooms, see :func:`room_of`; imports inside of a room are left out."""
    found: Edges = {room: set() for room in floors}
    for module, targets in edges.items():
        found[room_of(module, floors)] |= {room_of(target, floors) for target in targets}
    return {room: targets - {room} for room, targets in found.items()}


def upward(edges: Edges, floors: Sequence[str]) -> list[str]:
    """Imports of a room above one's own, as ``a.b imports c.d``, sorted; ``floors`` are the lowest first."""
    height = {room: number for number, room in enumerate(floors)}
    return sorted(
        f"{module} imports {target}"
        for module, targets in edges.items()
        for target in targets
        if height[room_of(target, floors)] > height[room_of(module, floors)]
    )


def room_of(module: str, floors: Sequence[str]) -> str:
    """The room that a module is in: the longest of the names in ``floors`` that it begins with."""
    found = [room for room in floors if f"{module}.".startswith(f"{room}.")]
    if not found:
        raise LookupError(f"{module} is in no room of the floors; add its room.")
    return max(found, key=len)


def _name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(module: str, file: Path) -> Iterator[str]:
    """Every name that is imported, with its module in front."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def _known(name: str, modules: Mapping[str, Path]) -> str | None:
    """The module that an imported name is, or is in."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def _reached(start: str, edges: Edges) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def floors_of(file: str) -> list[str]:
    """The floors that a test, by its place in ``tests``, holds rooms to, the lowest first."""
    (floors,) = re.findall(r"FLOORS = (\[.*?\])", (ROOT / "tests" / file).read_text(), re.S)
    return ast.literal_eval(floors)  # type: ignore[no-any-return]
