"""Images that are turned, normalised and corrupted once."""

import math

import pytest
import torch
from image_files import write_class_folders

from fedpart.data import Dataset, load_image_folder, load_splits, normalised, rotate, rotated, rotated_splits
from fedpart.data.image_dataset import ImageDataset
from fedpart.data.transformed import CORRUPTIONS, SEVERITIES, corrupted


@pytest.fixture(scope="module")
def digits():
    return load_splits("digits")


@pytest.mark.parametrize("size", [28, 7])
def test_a_positive_quarter_turn_is_rot90(size):
    images = torch.rand(5, 3, size, size, generator=torch.Generator().manual_seed(0))
    for turns in (-2, -1, 0, 1, 2):
        turned = rotate(images, torch.full((5,), turns * math.pi / 2))
        assert torch.allclose(turned, torch.rot90(images, turns, dims=(-2, -1)), atol=1e-5)
    oblong = images[..., :-2, :]
    assert torch.allclose(rotate(oblong, torch.full((5,), math.pi)), oblong.flip(-1, -2), atol=1e-5)
    line = torch.zeros(1, 1, 21, 41)
    line[0, 0, 10, 16:25] = 1.0  # nine pixels long, horizontal
    upright = rotate(line, torch.tensor([math.pi / 2]))
    assert torch.allclose(upright[0, 0, 6:15, 20], torch.ones(9), atol=1e-5)
    assert upright.sum().item() == pytest.approx(9, abs=1e-4), "not distorted"


def test_zeros_outside_and_large_batches():
    images = torch.ones(5000, 1, 4, 4)  # more than are turned at a time
    turned = rotate(images, torch.full((5000,), math.pi / 4))
    assert torch.equal(turned[0], turned[-1]) and turned.shape == images.shape
    assert turned[0, 0, 0, 0] < 0.5 and turned[0, 0, 1, 1] > 0.9


def correlation(angles, others):
    return torch.corrcoef(torch.stack([angles, others]))[0, 1].abs()


def test_rotated_data_and_some_images_turn_as_they_do_among_all(digits):
    turned = rotated(digits.train, seed=1)
    assert torch.equal(turned.targets, digits.train.targets)
    assert turned.groups.abs().max() <= math.pi + 1e-6 and turned.groups.abs().max() > 3.1
    assert abs(turned.groups.mean()) < 0.2
    assert torch.equal(turned.inputs[3:4], rotate(digits.train.inputs[3:4], turned.groups[3:4]))
    assert turned.inputs.min() >= 0 and turned.inputs.max() <= 1 + 1e-5
    assert torch.equal(rotated(digits.train, seed=1).inputs, turned.inputs)  # fixed
    assert correlation(rotated(digits.train, seed=2).groups, turned.groups) < 0.15
    assert rotated(digits.train, seed=1, max_angle=0.1).groups.abs().max() <= 0.1
    parts = rotated_splits(digits, seed=1)  # which draw their own angles
    assert torch.equal(parts.train.inputs, turned.inputs)
    for one, other in ((parts.validation, parts.test), (parts.validation, parts.train.subset(range(250)))):
        assert correlation(one.groups, other.groups) < 0.3
    places = [7, 3, 200]
    whole, some = rotated(digits.train, seed=4), rotated(digits.train, seed=4, places=places)
    assert torch.equal(some.groups, whole.groups[places]) and torch.equal(some.inputs, whole.inputs[places])
    assert torch.equal(some.targets, digits.train.targets[places])


def random_images(channels=3):
    images = torch.rand(50, channels, 6, 6, generator=torch.Generator().manual_seed(0))
    return Dataset(images, torch.arange(50) % 4, torch.linspace(-1, 1, 50))


def test_each_channel_gets_mean_0_and_deviation_1_of_its_own():
    dataset = random_images()
    mean, std = dataset.inputs.mean((0, 2, 3)), dataset.inputs.std((0, 2, 3))
    found = normalised(dataset, mean.tolist(), std.tolist())
    torch.testing.assert_close(found.inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.inputs.std((0, 2, 3)), torch.ones(3))
    assert found.targets is dataset.targets and found.groups is dataset.groups


def test_images_in_files_and_a_clients_own_test_examples(tmp_path):
    write_class_folders(tmp_path, 6, odd=False)
    train = load_image_folder(str(tmp_path)).train
    found = normalised(train, [0.5] * 3, [0.25] * 3)
    torch.testing.assert_close(found.inputs, 4 * train.inputs - 2)
    pair = Dataset(train.inputs, train.targets, evaluation=Dataset(train.inputs, train.targets))
    assert normalised(pair, [0.5] * 3, [0.25] * 3).evaluation.inputs.equal(found.inputs)


ROWS = torch.arange(32.0).view(-1, 1)
WAVES = [0.5 + 0.3 * torch.sin(0.5 * ROWS + c * ROWS.t() / 5 + n) for n in range(5) for c in range(3)]
IMAGES = torch.stack(WAVES).view(5, 3, 32, 32)
DATA = Dataset(IMAGES, torch.arange(5))


def of_corruption(name, severity, images=IMAGES):
    return corrupted(Dataset(images, torch.arange(len(images))), name, severity).inputs


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_images_stay_images_and_go_further_away_with_severity(name):
    before = IMAGES.clone()
    distances = []
    for severity in SEVERITIES:
        one = corrupted(DATA, name, severity)
        assert one.inputs.shape == IMAGES.shape and one.inputs.min() >= 0 and one.inputs.max() <= 1
        assert torch.equal(one.targets, DATA.targets)
        assert torch.equal(one.inputs, corrupted(DATA, name, severity).inputs)
        distances.append((one.inputs - IMAGES).square().mean().item())
    assert min(distances) > 0 and distances[0] < distances[-1]
    assert name == "pixelate" or distances == sorted(distances), "half the pixels fall on whole ones"
    assert torch.equal(IMAGES, before)


def test_closed_forms():
    grey, one = torch.full((1, 1, 6, 6), 0.4), torch.zeros(1, 1, 5, 5)
    one[0, 0, 2, 2] = 0.9
    for name in ("box_blur", "contrast", "pixelate"):
        torch.testing.assert_close(of_corruption(name, 5, grey), grey)
    torch.testing.assert_close(of_corruption("brightness", 2, grey), grey + 0.2)
    blurred = of_corruption("box_blur", 1, one)
    torch.testing.assert_close(blurred[0, 0, 1:4, 1:4], torch.full((3, 3), 0.1))
    assert blurred.sum() == pytest.approx(0.9, abs=1e-6)
    halves = torch.cat([torch.zeros(1, 1, 4, 2), torch.ones(1, 1, 4, 2)], 3)
    torch.testing.assert_close(of_corruption("contrast", 4, halves), 0.35 + 0.3 * halves)
    blocks = torch.arange(16.0).view(1, 1, 4, 4) / 16
    wanted = torch.nn.functional.avg_pool2d(blocks, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(of_corruption("pixelate", 3, blocks), wanted)
    noise = of_corruption("gaussian_noise", 2, torch.full((50, 1, 20, 20), 0.5)) - 0.5
    assert noise.std().item() == pytest.approx(0.08, rel=0.02) and abs(noise.mean()) < 0.002


@pytest.mark.parametrize("size", [None, 8])
def test_a_part_without_images_stays_one(size):
    """data_options: {validation: 0} beside rotated or normalise: no image there is decoded or counted."""
    nothing = ImageDataset(lambda place: None, torch.empty(0, dtype=torch.int64), size=size)
    changed = rotated(normalised(nothing, [0.5] * 3, [0.2] * 3), 0)
    assert changed.inputs.shape == (0, 3, size or 0, size or 0) and len(changed.groups) == 0
    assert len(corrupted(nothing, "brightness", 1, seed=0)) == 0
