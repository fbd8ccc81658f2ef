"""Hyperparameters of signals and spectrograms: shifts in time, masks over time and frequency."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedpart.nn.hyperparameters.base import TRANSFORMS, HyperModule, check_softness, soft_box, started
from fedpart.randomness.noise import uniform


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
            fault = f"{type(self).__name__} takes spectrograms [rows, frequency, time] or [rows, channels,"
            raise ValueError(f"{fault} frequency, time], got {tuple(x.shape)}.")
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
    """SpecAugment's :class:`.AxisMask` over time, the last axis of ``[rows, (channels,) frequency, time]``,
    or of signals ``[rows, channels, time]``."""

    axis = -1


@TRANSFORMS.register("frequency_mask")
class FrequencyMask(AxisMask):
    """SpecAugment's :class:`.AxisMask` over frequencies, the last axis but one of ``[rows, (channels,)
    frequency, time]``."""

    axis = -2


_OUTSIDE = ("zeros", "border", "circular")


@TRANSFORMS.register("time_shift")
class TimeShift(HyperModule):
    """Delays each row by a time from ``U(-reach, reach)``, all its channels alike; psi is the reach.

    Between samples a signal is interpolated linearly.

    Args:
        reach: initial reach as a fraction of the signal's length; at exactly 0 its expected gradient is 0,
            for reach and -reach are the same distribution.
        outside: what comes in at the ends: ``zeros``, the ``border`` value, or the other end (``circular``).
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("reach",)
    fixed = ("outside",)
    limits: ClassVar = {"reach": (-1.0, 1.0)}  # the signal's length

    def __init__(
        self, reach: float = 0.05, outside: Literal["zeros", "border", "circular"] = "zeros"
    ) -> None:
        super().__init__()
        if outside not in _OUTSIDE:
            raise ValueError(f"Unknown outside {outside!r} of a signal; choose one of {', '.join(_OUTSIDE)}.")
        self.outside = outside
        self.reach = started(reach, "reach of a shift starts from a finite fraction of the signal")

    def forward(self, x: Tensor) -> Tensor:
        """``x``: signals ``[rows, channels, time]``; each row has its own shift."""
        if x.ndim != 3:
            fault = f"A time shift takes signals [rows, channels, time], got {tuple(x.shape)}"
            raise ValueError(f"{fault}; give those without channels one by unsqueeze(1).")
        length = x.shape[-1]
        u = uniform((len(x), 1, 1), like=self.reach)
        shift = length * self.reach * (2 * u - 1)
        place = torch.arange(length, device=x.device, dtype=shift.dtype) - shift  # [rows, 1, time]
        before = place.detach().floor()
        share = (place - before).to(x.dtype)
        return (1 - share) * self._read(x, before.long()) + share * self._read(x, before.long() + 1)

    def _read(self, x: Tensor, place: Tensor) -> Tensor:
        """``x [rows, channels, time]`` at the whole places ``[rows, 1, time]``, inside or not."""
        length = x.shape[-1]
        inside = place.remainder(length) if self.outside == "circular" else place.clamp(0, length - 1)
        values = x.gather(-1, inside.expand_as(x))
        return values * (inside == place) if self.outside == "zeros" else values

    def widths(self) -> Tensor:
        """Width of the shift's distribution as a fraction of the signal, ``[1]``."""
        return 2 * self.reach.abs().view(1)

    def physical(self) -> dict[str, float]:
        return {"shift [+-%]": 100 * self.reach.detach().abs().item()}
