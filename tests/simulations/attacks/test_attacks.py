"""What hostile clients send and learn from, by hand."""

import math

import pytest
import torch
from problems import update_of

from fedpart import Dataset
from simulations.attacks import ATTACKS


def updates():
    """A hostile client's, and those of three honest ones: two of them train w_1, one has a psi gradient."""
    own = update_of({1: torch.tensor([1.0, -2.0]), 2: torch.tensor([3.0])}, torch.tensor([0.5]))
    honest = [
        update_of({1: torch.tensor([1.0, 2.0]), 2: torch.tensor([4.0])}),
        update_of({1: torch.tensor([3.0, 2.0]), 2: torch.tensor([8.0])}),
        update_of({2: torch.tensor([6.0])}, torch.tensor([-1.0])),
    ]
    return own, honest


SPREAD = math.sqrt(8 / 3)  # of 4, 6 and 8


@pytest.mark.parametrize(
    ("name", "options", "first", "second", "psi"),
    [
        ("sign", {}, [-10.0, 20.0], [-30.0], [-5.0]),
        ("sign", {"scale": 2.0}, [-2.0, 4.0], [-6.0], [-1.0]),
        ("scale", {}, [100.0, -200.0], [300.0], [50.0]),
        ("constant", {"value": 7.0}, [7.0, 7.0], [7.0], [7.0]),
        ("psi", {}, [1.0, -2.0], [3.0], [-50.0]),
        ("inner", {}, [-2.0, -2.0], [-6.0], [1.0]),
        ("little", {"deviations": 2.0}, [0.0, 2.0], [6 - 2 * SPREAD], [-1.0]),
        ("labels", {}, [1.0, -2.0], [3.0], [0.5]),
    ],
)
def test_uploads(name, options, first, second, psi):
    own, honest = updates()
    ATTACKS.make(name, options).upload(own, honest)
    torch.testing.assert_close(own.cells[1], torch.tensor(first))
    torch.testing.assert_close(own.cells[2], torch.tensor(second))
    torch.testing.assert_close(own.psi, torch.tensor(psi))
    for one, before in zip(honest, updates()[1], strict=True):
        assert all(torch.equal(one.cells[j], before.cells[j]) for j in before.cells)


def test_nan_is_everywhere():
    own, honest = updates()
    ATTACKS.make("nan", {}).upload(own, honest)
    assert all(value.isnan().all() for value in (*own.cells.values(), own.psi))


def test_colluding_clients_without_honest_ones_send_what_they_have():
    own, _ = updates()
    ATTACKS.make("inner", {}).upload(own, [])
    assert own.cells[2].item() == 3.0


def test_wrong_labels_are_the_classes_backwards():
    shard = Dataset(torch.rand(4, 2), torch.tensor([0, 1, 2, 9]))
    wrong = ATTACKS.make("labels", {}).shard(shard, 10)
    assert wrong.targets.tolist() == [9, 8, 7, 0] and shard.targets.tolist() == [0, 1, 2, 9]
    with pytest.raises(ValueError, match="for targets that are labels"):
        ATTACKS.make("labels", {}).shard(Dataset(torch.rand(4, 2), torch.rand(4)), 10)
