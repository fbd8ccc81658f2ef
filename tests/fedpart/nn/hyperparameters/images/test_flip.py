"""Flips: convex mixtures with the mirror image, their probability, and the gradient."""

import math

import pytest
import torch
from every_way import assert_learned_every_way

from fedpart import RandomFlip
from fedpart.randomness.noise import Noise, NoiseKey


def weights(probability, temperature=0.1, axis="horizontal", n=20_000):
    """z of every row: the image is 1 on the side that a flip would bring, and 0 on the other."""
    x = torch.zeros(n, 1, 2, 2)
    x[:, :, 0, 0] = 1
    with Noise(NoiseKey(0, "test")).active():
        out = RandomFlip(probability, axis, temperature)(x).detach()
    torch.testing.assert_close(out.sum((1, 2, 3)), torch.ones(n))
    return out[:, 0, 0, 1] if axis == "horizontal" else out[:, 0, 1, 0]


@pytest.mark.parametrize("axis", ["horizontal", "vertical"])
def test_it_is_learned_every_way(axis):
    assert_learned_every_way(RandomFlip(0.4, axis, 0.5), shape=(2, 6, 6))


@pytest.mark.parametrize("axis", ["horizontal", "vertical"])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
def test_more_than_half_is_flipped_with_the_probability(axis, probability, temperature):
    z = weights(probability, temperature, axis)
    error = 4 * math.sqrt(probability * (1 - probability) / len(z))
    assert (z > 0.5).double().mean().item() == pytest.approx(probability, abs=error)


def test_double_exposures_are_as_many_as_the_text_says():
    """z between 0.05 and 0.95 is u within sigmoid(-+temperature * logit 0.95)."""
    exact = 2 * torch.sigmoid(0.1 * torch.special.logit(torch.tensor(0.95))) - 1
    assert exact.item() == pytest.approx(0.15, abs=0.005)
    z = weights(0.5)
    found = ((z > 0.05) & (z < 0.95)).double().mean().item()
    assert found == pytest.approx(exact.item(), abs=4 * math.sqrt(0.15 * 0.85 / len(z)))


def test_a_symmetric_image_stays_and_a_certain_flip_is_one():
    x = torch.rand(3, 2, 4, 5)
    even = x + x.flip(3)
    torch.testing.assert_close(RandomFlip()(even), even)
    for axis, dim in (("horizontal", 3), ("vertical", 2)):
        torch.testing.assert_close(RandomFlip(1 - 1e-7, axis, 1e-3)(x), x.flip(dim))
        torch.testing.assert_close(RandomFlip(1e-7, axis, 1e-3)(x), x)


def test_physical_and_text():
    assert RandomFlip(0.3).physical() == {"horizontal [%]": pytest.approx(30)}
    assert repr(RandomFlip(axis="vertical")) == "RandomFlip(axis=vertical, temperature=0.1)"
