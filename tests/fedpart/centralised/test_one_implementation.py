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
EVERYTHING = FILES | {
    ".".join(file.relative_to(FOLDER.parent).with_suffix("").parts): file
    for package in ("server", "client", "simulations")
    for file in (FOLDER.parent / package).rglob("*.py")
    if file.parent.name != "pretraining"  # plain torch, for bodies that are frozen later
}
SHARED = {
    f"fedpart.{name}"
    for name in (
        *("task.task", "task.gradients", "task.model", "task.psi_names"),
        *("partition.partition", "partition.space", "randomness.noise", "randomness.streams"),
        *("training.optimisers", "training.state", "training.agreement"),
        *("methods.base", "nn.hyperparameters.base"),
    )
}
FEDERATED = (
    "fedpart.federated.federation",
    "fedpart.engines.executor",
    "fedpart.federated.protocol",
    "fedpart.engines.local",
    "fedpart.engines.worker",
    "fedpart.api",
)
CENTRALISED = ("fedpart.centralised.training", "fedpart.centralised.fit", "fedpart.centralised.settings")


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
    federated = reached("fedpart.federated.federation", "fedpart.engines.executor")
    centralised = reached("fedpart.centralised.training")
    assert federated >= SHARED and centralised >= SHARED


@pytest.mark.parametrize("side, other", [(FEDERATED, CENTRALISED), (CENTRALISED, FEDERATED)])
def test_neither_imports_the_other(side, other):
    # A method is told apart by what it defines; it may speak of both, at type checking.
    assert not reached(*side) & set(other)


def resolved(tree):
    """Every name and attribute of a module in full: aliases of imports are followed."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {
                alias.asname or alias.name.partition(".")[0]: alias.name
                for alias in node.names
                if alias.asname
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            head, dot, rest = ast.unparse(node).partition(".")
            yield aliases.get(head, head) + dot + rest


@cache
def names_in(module):
    return frozenset(resolved(ast.parse(EVERYTHING[module].read_text())))


def users(*calls):
    """Modules of the library, and of what is built on it, that use one of ``calls`` (``.name``: of any)."""
    ends = tuple(call for call in calls if call[0] == ".")
    return {
        module
        for module in EVERYTHING
        if names_in(module) & set(calls) or any(name.endswith(ends) for name in names_in(module) if ends)
    }


@pytest.mark.parametrize(
    "text",
    [
        "from torch.optim import Adam\nAdam([])",
        "from torch.optim import Adam as A\nA([])",
        "import torch.optim as o\no.Adam([])",
        "import torch\ntorch.optim.Adam([])",
        "from torch import optim\noptim.Adam([])",
    ],
)
def test_aliases_are_followed(text):
    assert "torch.optim.Adam" in set(resolved(ast.parse(text)))


def test_every_part_of_the_mathematics_has_one_place():
    differentiates = users("torch.autograd.grad", ".backward")
    of_losses = {"fedpart.task.gradients", "fedpart.engines.vectorised.gradients"}
    of_evidence = {"fedpart.methods.evidence.estimate", "fedpart.methods.evidence.estimates"}
    looks_at_hooks = {"fedpart.task.looking.first_look"}  # whose gradients nobody uses
    assert differentiates == of_losses | of_evidence | looks_at_hooks
    optimisers = {"fedpart.training.optimisers"}
    assert users("torch.optim.adam.adam", "torch.optim.adamw.adamw", "torch.optim.sgd.sgd") == optimisers
    assert users("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.SGD") == set()
    assert users("torch.func.functional_call") == set()
    assert users("fedpart.task.passes.Substitution") == set()
    assert users("fedpart.task.passes.Passes") == {"fedpart.task.task"}
    assert users("fedpart.nn.likelihoods.base.average_samples") == {"fedpart.nn.likelihoods.classification"}
    assert users("fedpart.training.optimisers.DECAY_POWERS") == set()
    checkpoints = {"fedpart.training.state", "fedpart.training.files"}
    loads = checkpoints | {"fedpart.nn.models.pretrained"}  # and a body of somebody's
    assert users("torch.save", "torch.load") == loads | {"fedpart.updates.client_state"}  # and of codecs


def test_both_take_their_gradients_and_their_optimisers_from_there():
    for module in ("fedpart.engines.executor", "fedpart.centralised.training"):
        assert "fedpart.task.gradients" in imported(module)
    assert "fedpart.training.optimisers" in imported("fedpart.engines.executor")
    for module in ("fedpart.federated.federation", "fedpart.centralised.training"):
        assert "fedpart.training.state" in imported(module)
