"""Rotated data sets: every image is turned once by an angle of its own (App. J.2)."""

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional

from fedpart.data.dataset import Dataset, Indices, Splits
from fedpart.randomness.streams import generator

_BATCH = 4096  # images turned at a time, to bound memory


def rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Turn every image about its centre, bilinearly; what lies outside is 0.

    A positive angle turns counter-clockwise as the image is seen (rows downwards, columns to the right), as
    ``torch.rot90(image, 1, dims=(-2, -1))`` does for pi/2. Pixels are the areas between corners
    (align_corners=False), so a square image turned by 90 degrees falls exactly on its own pixels; counted
    from their centres instead, a rotation without scaling reads the same points.

    Args:
        images: [n, c, h, w] floating point.
        angles: [n] radians.

    Returns:
        [n, c, h, w], same dtype and device.

    Raises:
        ValueError: the shapes do not fit.
    """
    if images.dim() != 4 or angles.shape != images.shape[:1]:
        raise ValueError(
            f"rotate takes images [n, c, h, w] and one angle per image [n], got {list(images.shape)} and "
            f"{list(angles.shape)}."
        )
    height, width = images.shape[-2:]
    cos, sin, zero = torch.cos(angles), torch.sin(angles), torch.zeros_like(angles)
    # Where an output point (x, y) is read from in the input, in units of half the image's width and height.
    rows = [cos, -sin * height / width, zero], [sin * width / height, cos, zero]
    matrices = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=1).to(images)  # [n, 2, 3]
    turned = []
    for part, matrix in zip(torch.split(images, _BATCH), torch.split(matrices, _BATCH), strict=True):
        grid = functional.affine_grid(matrix, list(part.shape), align_corners=False)
        turned.append(functional.grid_sample(part, grid, mode="bilinear", align_corners=False))
    return torch.cat(turned)


def rotated(
    dataset: Dataset, seed: int, max_angle: float = math.pi, *, part: int = 0, places: Indices | None = None
) -> Dataset:
    """``dataset`` with every image turned by its own angle ~ U[-max_angle, max_angle], drawn once (App. J.2).

    An image has the same angle whether all are turned or some: name these by ``places``, and do not take the
    subset before.

    Args:
        dataset: inputs [n, c, h, w].
        seed: the data seed.
        max_angle: radians, above 0 and at most pi.
        part: number of the data set within its source; different parts draw different angles from the same
            seed.
        places: [m] the examples to turn; None: all n.

    Returns:
        The turned images, their targets and clients, and the angles as ``groups`` ([m] float32, radians).

    Raises:
        ValueError: ``max_angle`` is out of range, or the inputs are not images.
    """
    if not 0 < max_angle <= math.pi + 1e-6:
        raise ValueError(f"max_angle is in radians, above 0 and at most pi, got {max_angle}.")
    drawn = generator(seed, "data.rotation", part).uniform(-max_angle, max_angle, len(dataset))
    angles = torch.as_tensor(drawn, dtype=torch.float32)
    if places is not None:
        index = torch.as_tensor(places, dtype=torch.int64)
        dataset, angles = dataset.subset(index), angles[index]
    angles = angles.to(dataset.inputs.device)
    turned = rotate(dataset.inputs, angles)
    return Dataset(turned, dataset.targets, angles, clients=dataset.clients)


def rotated_splits(splits: Splits, seed: int, max_angle: float = math.pi) -> Splits:
    """All three parts rotated by independent angles, validation and test as training is (App. J.2)."""
    numbers = itertools.count()
    return splits.mapped(lambda dataset: rotated(dataset, seed, max_angle, part=next(numbers)))
