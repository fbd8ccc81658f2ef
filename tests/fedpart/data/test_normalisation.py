"""Normalised images: what the numbers become, what fills in, what travels with them, what is refused."""

import warnings

import torch
from image_files import write_class_folders
from places import DATA

from fedpart import AffineAugmentation
from fedpart.data import Dataset, load_image_folder, load_splits, normalised
from fedpart.randomness.noise import Noise, NoiseKey

CIFAR = [125.3 / 255, 123.0 / 255, 113.9 / 255], [63.0 / 255, 62.1 / 255, 66.7 / 255]


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


def test_what_a_large_shift_fills_in_is_the_mean_colour():
    mean, std = CIFAR
    images = normalised(random_images(), mean, std).inputs
    augmentation = AffineAugmentation(family="lila", initial=[0.0] * 6)
    with torch.no_grad():
        augmentation.range[0] = 1e4  # half-width of the shift along x: all but surely outside
        with Noise(NoiseKey(0, "test", ())).active():
            moved = augmentation(images)
    outside = moved.flatten(1).abs().amax(1) == 0
    assert outside.sum() >= 49
    back = moved[outside] * torch.tensor(std).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)
    torch.testing.assert_close(back, torch.tensor(mean).view(-1, 1, 1).expand_as(back))


def test_lilas_numbers_are_those_of_cifar10():
    if list(DATA.glob("cifar*10*")):
        dataset, numbers = load_splits("cifar10", str(DATA)).train.subset(range(0, 45_000, 3)), CIFAR
    else:
        warnings.warn(
            f"cifar10 is not in {DATA} (set FEDPART_DATA_DIR): random images are used.", stacklevel=2
        )
        dataset = random_images()
        numbers = [found((0, 2, 3)).tolist() for found in (dataset.inputs.mean, dataset.inputs.std)]
    images = normalised(dataset, *numbers).inputs
    assert images.mean((0, 2, 3)).abs().max() < 1e-2
    assert (images.var((0, 2, 3)) - 1).abs().max() < 2e-2  # JPEG loses 1.4% of red's
