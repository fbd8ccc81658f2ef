"""Federated and centralised training are one implementation: who imports what, where the mathematics is."""

import ast
from functools import cache
from pathlib import Path

import pytest

import fedpart

FOLDER = Path(fedpart.__file__).parent
FILES = {
    ".".join(("fedpart", *file.relative_to(FOLDER).with_suffix("").parts)).removesuffix(".__init__"): file
    for file in FOLDER.rglob("*.py")
}
SHARED = {
    f"fedpart.{name}"
    for name in (
        *("task", "jobs", "partition", "space", "gradients", "optim", "state", "noise", "rng", "agreement"),
        *("likelihood", "psi", "methods.base", "hyperparameters.base"),
    )
}
FEDERATED = (
    "fedpart.federation",
    "fedpart.executor",
    "fedpart.protocol",
    "fedpart.engines.local",
    "fedpart.api",
)
CENTRALISED = ("fedpart.centralised", "fedpart.training", "fedpart.reports")


@cache
def imported(module):
    """The modules of the library that ``module`` imports, type checkers' imports apart."""
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedpart"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update((names & FILES.keys()) | ({node.module} if names - FILES.keys() else set()))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(FILES[module].read_text()))
    if module == "fedpart.methods.base":  # the methods in the folder are found at run time
        found.update(name for name in FILES if name.startswith("fedpart.methods."))
    return frozenset(found)


def reached(*modules):
    """Everything that the modules import, directly or not."""
    found, todo = set(), list(modules)
    while todo:
        for name in imported(todo.pop()) - found:
            found.add(name)
            todo.append(name)
    return found


def test_both_stand_on_the_same_rooms():
    federated = reached("fedpart.federation", "fedpart.executor")
    centralised = reached("fedpart.centralised")
    assert federated >= SHARED and centralised >= SHARED


@pytest.mark.parametrize("side, other", [(FEDERATED, CENTRALISED), (CENTRALISED, FEDERATED)])
def test_neither_imports_the_other(side, other):
    # A method is told apart by what it defines; it may speak of both, at type checking.
    assert not reached(*side) & set(other)


def users(*calls):
    """Modules in which one of ``calls`` (dotted names) is used."""
    found = set()
    for module, file in FILES.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.Attribute, ast.Name)) and ast.unparse(node).endswith(calls):
                found.add(module)
    return found


def test_every_part_of_the_mathematics_has_one_place():
    assert users("autograd.grad", ".backward", "autograd.backward") == {"fedpart.gradients"}
    assert users("optim.Adam", "optim.AdamW", "optim.SGD") == {"fedpart.optim"}
    assert users("functional_call") == {"fedpart.task"}
    assert users("average_samples") - {"fedpart.likelihood"} == {"fedpart.task"}
    assert users("DECAY_POWERS") - {"fedpart.optim"} <= {"fedpart.settings"}
    assert users("torch.save", "torch.load") == {"fedpart.state"}


def test_both_take_their_gradients_and_their_optimisers_from_there():
    for module in ("fedpart.executor", "fedpart.centralised"):
        assert {"fedpart.gradients", "fedpart.optim"} <= imported(module)
    for module in ("fedpart.federation", "fedpart.centralised"):
        assert "fedpart.state" in imported(module)
