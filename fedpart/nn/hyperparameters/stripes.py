"""Squares and stripes of learned size that are set to 0: Cutout, and SpecAugment's masks."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from fedpart.nn.hyperparameters.base import TRANSFORMS, HyperModule, check_images, started
from fedpart.randomness.noise import uniform


def soft_box(length: int, centre: Tensor, width: Tensor, softness: float) -> Tensor:
    """About 1 inside of an interval and 0 outside, ``[rows, length]``: a difference of two sigmoids.

    At width 0 it is 0 everywhere, and it is odd in the width. ``centre`` and ``width`` are fractions of the
    axis, ``[rows, 1]`` or broadcast to it; ``softness`` is the sigmoids' scale in places: an edge rises from
    10% to 90% within 4.4 of them.
    """
    places = (torch.arange(length, device=centre.device, dtype=centre.dtype) + 0.5) / length
    offset, scale = places - centre, length / softness
    return torch.sigmoid(scale * (offset + width / 2)) - torch.sigmoid(scale * (offset - width / 2))


def check_softness(softness: float) -> None:
    """Refuse a softness that is not positive and finite, with a ValueError."""
    if not 0 < softness < math.inf:
        raise ValueError(
            f"The softness of an edge is positive, got {softness}; 0.5 is about two places from in to out."
        )


@TRANSFORMS.register("cutout")
class Cutout(HyperModule):
    """Sets a square of each row to 0; psi is its side, and its centre is uniform over the image.

    The square may reach beyond the image, as in the paper. Its edges are soft (:func:`.soft_box`), or a
    loss would not be differentiable in the side; so a square of few pixels is not wholly 0 inside.

    Args:
        side: initial side as a fraction of the image's shorter side; at exactly 0 its gradient is 0, for side
            and -side are the same.
        softness: of the edges, in pixels, > 0; an edge goes from 10% to 90% within 4.4 of it.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("side",)
    limits: ClassVar = {"side": (-2.0, 2.0)}  # nothing is left of an image, wherever the centre is
    fixed = ("softness",)

    def __init__(self, side: float = 0.2, softness: float = 0.5) -> None:
        super().__init__()
        check_softness(softness)
        self.softness = softness
        self.side = started(side, "side of a cutout starts from a finite fraction of the image")

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has a square of its own."""
        check_images(x, "Cutout")
        height, width = x.shape[2:]
        centre = uniform((len(x), 2), like=self.side)
        pixels = self.side * min(height, width)
        down = soft_box(height, centre[:, :1], pixels / height, self.softness)
        across = soft_box(width, centre[:, 1:], pixels / width, self.softness)
        hole = down[:, None, :, None] * across[:, None, None, :]
        return x * (1 - hole).to(x.dtype)

    def physical(self) -> dict[str, float]:
        return {"side [%]": 100 * self.side.detach().abs().item()}


class AxisMask(HyperModule):
    """Sets a stripe across one axis of each row to 0; psi is the largest width of the stripe.

    As in the paper the width is drawn from ``U(0, width)``, and the stripe's place uniformly among those that
    lie within the axis. Its edges are soft (:func:`.soft_box`), or a loss would not be differentiable in the
    width; so a stripe of few places is not wholly 0 inside. For several stripes list the transform as often.

    Args:
        width: initial largest width as a fraction of the axis; psi and -psi are the same.
        softness: of the edges, in places of the axis, > 0; an edge goes from 10% to 90% within 4.4 of it.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("width",)
    limits: ClassVar = {"width": (-2.0, 2.0)}
    fixed = ("softness",)
    axis: ClassVar[int] = -1
    """The axis that the stripe lies across, counted from the last."""

    def __init__(self, width: float = 0.1, softness: float = 0.5) -> None:
        super().__init__()
        check_softness(softness)
        self.softness = softness
        self.width = started(width, "width of a mask starts from a finite fraction of its axis")

    def forward(self, x: Tensor) -> Tensor:
        """``x``: ``[rows, ..., frequency, time]``; each row has its own stripe."""
        if x.ndim < 3:
            raise ValueError(
                f"{type(self).__name__} takes spectrograms [rows, frequency, time] or [rows, channels, "
                f"frequency, time], got {tuple(x.shape)}."
            )
        u = uniform((len(x), 2), like=self.width)
        width = self.width.abs() * u[:, :1]
        centre = width / 2 + u[:, 1:] * (1 - width).clamp(min=0)
        kept = 1 - soft_box(x.shape[self.axis], centre, width, self.softness)
        shape = [len(x), *[1] * (x.ndim - 1)]
        shape[self.axis] = x.shape[self.axis]
        return x * kept.view(shape).to(x.dtype)

    def widths(self) -> Tensor:
        """Width of the distribution of the stripe's width, as a fraction of the axis, ``[1]``."""
        return self.width.abs().view(1)

    def physical(self) -> dict[str, float]:
        return {"largest width [%]": 100 * self.width.detach().abs().item()}


@TRANSFORMS.register("time_mask")
class TimeMask(AxisMask):
    """SpecAugment's mask over time, the last axis: of ``[rows, (channels,) frequency, time]``.

    Signals ``[rows, channels, time]`` will do as well. Arguments and errors are those of :class:`.AxisMask`.
    """

    axis = -1


@TRANSFORMS.register("frequency_mask")
class FrequencyMask(AxisMask):
    """SpecAugment's mask over frequencies, the last axis but one: of ``[rows, (channels,) frequency, time]``.

    Arguments and errors are those of :class:`.AxisMask`.
    """

    axis = -2
