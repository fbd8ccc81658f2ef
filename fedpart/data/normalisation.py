"""Normalised data sets: images whose channels are brought to mean 0 and deviation 1, once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset


def normalised(dataset: Dataset, mean: Sequence[float], std: Sequence[float]) -> Dataset:
    """``(image - mean) / std``, channel by channel.

    What an augmentation with ``padding="zeros"`` fills in is then the mean colour, not black. Rotate first:
    :func:`.rotated` fills in black.

    Args:
        dataset: inputs [n, c, h, w] floating point.
        mean: c numbers, in the images' unit.
        std: c numbers above 0.

    Returns:
        The images, with their targets, groups, clients and examples for evaluation.

    Raises:
        ValueError: the inputs are no images, there is not one mean and one deviation for each channel, or one
            is not finite or a deviation not above 0.
    """
    images = dataset.inputs
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
        raise ValueError("Only images [n, c, h, w] of real numbers can be normalised; leave normalise out.")
    if not len(mean) == len(std) == images.shape[1]:
        raise ValueError(
            f"normalise has {len(mean)} means and {len(std)} deviations, but the images have "
            f"{images.shape[1]} channels; give one of each for every channel."
        )
    shift, scale = (torch.tensor(values).to(images).view(-1, 1, 1) for values in (mean, std))
    if not (shift.isfinite().all() and scale.isfinite().all() and (scale > 0).all()):
        raise ValueError(f"normalise takes finite means and deviations above 0, got {mean} and {std}.")
    own = None if dataset.evaluation is None else normalised(dataset.evaluation, mean, std)
    return Dataset((images - shift) / scale, dataset.targets, dataset.groups, own, dataset.clients)
