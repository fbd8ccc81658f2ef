"""Input transforms act on one part of inputs that are a dict or a tuple."""

from collections import namedtuple

import problems
import pytest
import torch
from torch import nn

from fedpart import AffineAugmentation, Dataset, Protocol, Task, fit
from fedpart.randomness.noise import Noise, NoiseKey


class Shift(problems.Shift):
    def forward(self, x):
        return {**x, "b": x["b"] + self.amount} if isinstance(x, dict) else x + self.amount


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, a, b):
        return self.fc(a) + 10 * self.fc(b)


Pair = namedtuple("Pair", ["a", "b"])
A, B = torch.rand(4, 3), torch.rand(4, 3)


def outputs(transform, inputs, module=None):
    task = Task(module or Sum(), transforms=[transform], samples=1).replace(samples=2)  # which keeps the part
    space = task.parameter_space(1)
    w = space.tensors(torch.ones(space.size))
    return task.outputs(w, task.psi_space.initial(), inputs, Noise(NoiseKey(0, "test")))


def by_hand(a, b):
    return ((a.sum(1) + 1) + 10 * (b.sum(1) + 1))[:, None].expand(4, 2)


@pytest.mark.parametrize("part", ["b", "*"])
def test_on_a_key(part):
    torch.testing.assert_close(outputs(Shift().on(part), {"a": A, "b": B}), by_hand(A, B + 0.5))


@pytest.mark.parametrize("form", [tuple, list, Pair._make])
def test_on_a_place(form):
    torch.testing.assert_close(outputs(Shift().on(0), form((A, B))), by_hand(A + 0.5, B))


def test_the_only_part_with_real_numbers_needs_no_name_and_a_name_is_part_of_the_agreement():
    class Masked(nn.Linear):
        def forward(self, x, mask):
            return super().forward(x * mask)

    mask = torch.tensor([[1, 0, 1]] * 4)
    found = outputs(Shift(), {"x": A, "mask": mask}, Masked(3, 2))
    torch.testing.assert_close(found, (((A + 0.5) * mask).sum(1) + 1)[:, None].expand(4, 2))

    def fingerprint(transform):
        torch.manual_seed(0)
        return Protocol(Task(Sum(), transforms=[transform]), problems.settings(4)).fingerprint

    assert len({fingerprint(Shift()), fingerprint(Shift().on("a")), fingerprint(Shift().on("b"))}) == 3


def test_augerino_acts_on_the_part_and_two_pairs_are_chunks_or_asked_about():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.table = nn.Linear(64, 3), nn.Linear(3, 3)

        def forward(self, image, table):
            return self.image(image.flatten(1)) + self.table(table)

    def loss(outputs, targets):
        return sum(nn.functional.cross_entropy(outputs, labels, reduction="none") for labels in targets)

    images, rows, labels = torch.rand(12, 1, 8, 8), torch.randn(12, 3), torch.arange(12) % 3
    task = Task(Two(), likelihood=loss, transforms=[AffineAugmentation().on(0)], samples=2)
    data = Dataset((images, rows), (labels, labels.flip(0)))
    for method in ("augerino", "partitioned"):
        found = fit(task, data, method=method, iterations=2, batch_size=4)
        assert len(found.state.examples(1, len(found.state.shares))) == 12
    two_chunks = [Dataset((images[:8], rows[:8]), labels[:8]), Dataset((images[8:], rows[8:]), labels[8:])]
    assert len(fit(task.replace(likelihood="classification"), two_chunks, iterations=2).state.shares) == 2
    pairs = ((rows[:8], labels[:8]), (rows[8:], labels[8:]))
    assert len(fit(nn.Linear(3, 3), pairs, iterations=2).state.shares) == 2
    with pytest.raises(ValueError, match="give chunks as a list, and trees"):
        fit(nn.Linear(3, 3), ((rows[:6], labels[:6]), (rows[6:], labels[6:])), iterations=2)
