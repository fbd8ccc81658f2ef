"""Ensembles from a configuration's list of members, and the one whose members share nothing."""

import pytest
import torch

from fedpart import Dataset, Task, fit
from fedpart.nn.models import MODELS, digits_cnn

SHAPE = (1, 8, 8)
CNN = {"model": "digits_cnn", "width": 0.5}


def made(kind="deep", members=(CNN, CNN), options=None, **more):
    return MODELS.make(
        "ensemble",
        {"num_classes": 3, "input_shape": SHAPE, "kind": kind, "members": members, "options": options} | more,
    )


def test_members_of_any_model_and_size_start_from_values_of_their_own():
    found = made(members=[CNN | {"times": 2}, {"model": "mlp", "hidden": [5]}])
    assert len(found) == 3
    x = torch.rand(4, *SHAPE)
    outputs = found(x)
    assert outputs.shape == (4, 3, 3)
    first, second = (
        torch.cat([p.flatten() for p in m.parameters() if p.dim() > 1]) for m in found.members[:2]
    )
    assert len(first) > 100 and (first != second).float().mean() > 0.99
    assert torch.equal(found(x, only=[2, 0]), outputs[:, [2, 0]])
    assert torch.equal(outputs[:, 2], found.members[2](x))


@pytest.mark.parametrize("kind", ["deep", "mimo", "slimmable"])
def test_one_member_is_the_plain_network_to_the_bit(kind):
    """In its outputs, and after steps of training with dropout."""
    data = Dataset(torch.rand(12, *SHAPE), torch.arange(12) % 3)
    torch.manual_seed(0)
    plain = digits_cnn(3, SHAPE, dropout=0.2, width=0.5)
    torch.manual_seed(0)
    one = made(kind, [CNN], dropout=0.2)
    found = []
    for module, likelihood in ((plain, "classification"), (one, "ensemble")):
        task = Task(module, likelihood=likelihood, samples=2)
        settings = {"method": "none", "chunks": (1.0,), "iterations": 3, "batch_size": 6}
        found.append(fit(task, data, **settings).state)
    for name, value in found[0].tensors().items():
        assert torch.equal(value, found[1].tensors()[f"members.0.{name}"])
