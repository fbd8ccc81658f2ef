"""The names of Flower that a source uses, beside those that Flower documents."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

PUBLIC = ("app", "serverapp", "serverapp.strategy", "clientapp", "simulation", "server", "client")
"""Modules of flwr whose ``__all__`` is documented."""


def private_names(file: Path) -> set[str]:
    """Names that a file imports from flwr, or mentions as text, as far as they are not public."""
    return {name for name in _names(ast.parse(file.read_text())) if not _is_public(name)}


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("flwr"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split(".")
            if words[0] == "flwr" and len(words) > 1 and all(word.isidentifier() for word in words):
                yield node.value


def _is_public(name: str) -> bool:
    module, _, last = name.rpartition(".")
    place = module.removeprefix("flwr.")
    return place in PUBLIC and last in importlib.import_module(module).__all__


def exists(name: str) -> bool:
    """Whether a module, a name in one, or an attribute of that is there."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
