"""Shifts of signals in time, with a learned range."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedpart.nn.hyperparameters.base import TRANSFORMS, HyperModule, started
from fedpart.randomness.noise import uniform

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
            raise ValueError(
                f"A time shift takes signals [rows, channels, time], got {tuple(x.shape)}; give those "
                f"without channels one by unsqueeze(1)."
            )
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
