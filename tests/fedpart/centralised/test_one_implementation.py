"""Federated and centralised training are one implementation: each part of the mathematics has one place."""

import re

import pytest
from places import ROOT

FILES = {
    str(file.relative_to(ROOT)): file.read_text()
    for room in ("fedpart", "server", "client", "simulations")
    for file in (ROOT / room).rglob("*.py")
    if file.parent.name != "pretraining"  # plain torch, for bodies that are frozen later
}
GRADIENTS = {
    *("fedpart/task/gradients.py", "fedpart/engines/stack.py"),  # of losses
    *("fedpart/methods/evidence/estimate.py", "fedpart/methods/evidence/estimates.py"),
    "fedpart/task/looking/first_look.py",  # at hooks, by gradients that nobody uses
}
CHECKPOINTS = {"fedpart/training/state.py", "fedpart/training/files.py"}
BODIES, CODECS = "fedpart/nn/models/pretrained.py", "fedpart/updates/client_state.py"


def places(pattern):
    return {name for name, text in FILES.items() if re.search(pattern, text)}


@pytest.mark.parametrize(
    ("pattern", "users"),
    [
        (r"autograd\.grad\(|\.backward\(|import .*\bgrad\b", GRADIENTS),
        (
            r"^(from|import) torch\.optim|torch\.optim\.\w+\(|import optim\b",
            {"fedpart/training/optimisers.py"},
        ),
        (r"functional_call\(", set()),
        (r"import .*\bPasses\b", {"fedpart/task/task.py"}),
        (r"(?<!safetensors\.)torch\.(save|load)\(", CHECKPOINTS | {BODIES, CODECS}),
    ],
)
def test_every_part_of_the_mathematics_has_one_place(pattern, users):
    assert places(f"(?m){pattern}") == users


def test_both_take_their_parts_from_there_and_neither_knows_the_other():
    for module in ("fedpart/engines/executor.py", "fedpart/centralised/training.py"):
        assert "from fedpart.task.gradients import" in FILES[module]
    for module in ("fedpart/federated/federation.py", "fedpart/centralised/training.py"):
        assert "from fedpart.training.state import ModelState" in FILES[module]
    assert not {name for name in places("fedpart.centralised") if name.startswith("fedpart/federated")}
    assert not {
        name for name in places("fedpart.(federated|engines)") if name.startswith("fedpart/centralised")
    }
