"""Rotated images and the clients that they are divided among."""

import math

import numpy as np
import pytest
import torch

from fedpart.data import SPLITS, angle_bins, load_splits, rotate, rotated, rotated_splits


@pytest.fixture(scope="module")
def digits():
    return load_splits("digits")


@pytest.mark.parametrize("size", [28, 7])
def test_a_positive_quarter_turn_is_rot90(size):
    images = torch.rand(5, 3, size, size, generator=torch.Generator().manual_seed(0))
    for turns in (-2, -1, 0, 1, 2):
        turned = rotate(images, torch.full((5,), turns * math.pi / 2))
        assert torch.allclose(turned, torch.rot90(images, turns, dims=(-2, -1)), atol=1e-5)


def test_a_positive_angle_is_counter_clockwise():
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 8] = 1.0  # at the right edge
    turned = rotate(image, torch.tensor([math.radians(45)]))
    row, column = divmod(int(turned.argmax()), 9)
    assert row < 4 and column > 4  # now at the upper right


def test_half_turn_of_an_oblong_image_and_no_distortion():
    images = torch.rand(2, 1, 6, 10, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(rotate(images, torch.full((2,), math.pi)), images.flip(-1, -2), atol=1e-5)
    line = torch.zeros(1, 1, 21, 41)
    line[0, 0, 10, 16:25] = 1.0  # nine pixels long, horizontal
    upright = rotate(line, torch.tensor([math.pi / 2]))
    assert torch.allclose(upright[0, 0, 6:15, 20], torch.ones(9), atol=1e-5)
    assert upright.sum().item() == pytest.approx(9, abs=1e-4)


def test_there_and_back():
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 28), torch.linspace(-1, 1, 28), indexing="ij")
    image = torch.exp(-((rows - 0.2) ** 2 + (columns + 0.1) ** 2) / 0.2).expand(8, 1, 28, 28)
    angles = torch.linspace(-3, 3, 8)
    back = rotate(rotate(image, angles), -angles)
    assert (back - image).abs().max() < 0.05
    assert (rotate(image, angles) - image).abs().max() > 0.3


def test_zeros_outside_and_large_batches():
    images = torch.ones(5000, 1, 4, 4)  # more than are turned at a time
    turned = rotate(images, torch.full((5000,), math.pi / 4))
    assert torch.equal(turned[0], turned[-1]) and turned.shape == images.shape
    assert turned[0, 0, 0, 0] < 0.5 and turned[0, 0, 1, 1] > 0.9


def correlation(angles, others):
    """Five times 1 / sqrt(n) or more is no chance."""
    return torch.corrcoef(torch.stack([angles, others]))[0, 1].abs()


def test_rotated_data(digits):
    turned = rotated(digits.train, seed=1)
    assert torch.equal(turned.targets, digits.train.targets)
    assert turned.groups.abs().max() <= math.pi + 1e-6 and turned.groups.abs().max() > 3.1
    assert abs(turned.groups.mean()) < 0.2
    assert torch.equal(turned.inputs[3:4], rotate(digits.train.inputs[3:4], turned.groups[3:4]))
    assert turned.inputs.min() >= 0 and turned.inputs.max() <= 1 + 1e-5
    assert torch.equal(rotated(digits.train, seed=1).inputs, turned.inputs)  # fixed
    assert correlation(rotated(digits.train, seed=2).groups, turned.groups) < 0.15
    assert rotated(digits.train, seed=1, max_angle=0.1).groups.abs().max() <= 0.1


def test_rotated_splits_draw_their_own_angles(digits):
    turned = rotated_splits(digits, seed=1)
    assert torch.equal(turned.train.inputs, rotated(digits.train, seed=1).inputs)
    assert correlation(turned.validation.groups, turned.test.groups) < 0.3
    assert correlation(turned.validation.groups, turned.train.groups[:250]) < 0.3


def test_rotated_clients_see_few_angles(digits):
    turned = rotated(digits.train, seed=0)
    bins = angle_bins(turned.groups)
    shards = SPLITS["per_client"](bins, 20, 0.1, 0)
    spread = np.mean([len(set(bins[shard])) for shard in shards])
    assert spread < 6  # of ten
    labels = np.mean([len(set(turned.targets[shard].tolist())) for shard in shards])
    assert labels > 9  # the skew is in the angle alone


def test_some_images_turn_as_they_do_among_all(digits):
    places = [7, 3, 200]
    whole, some = rotated(digits.train, seed=4), rotated(digits.train, seed=4, places=places)
    assert torch.equal(some.groups, whole.groups[places]) and torch.equal(some.inputs, whole.inputs[places])
    assert torch.equal(some.targets, digits.train.targets[places])


def test_what_lies_outside_of_a_turned_image():
    images = torch.ones(1, 3, 12, 12)
    assert rotate(images, torch.tensor([math.pi / 4]))[0, :, 0, 0].max() == 0
