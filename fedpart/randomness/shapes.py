"""Shapes of the noise that a loss asks for, found without drawing any."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedpart.randomness.noise import Noise, NoiseKey


class Draw(NamedTuple):
    """What a loss asks for: see :func:`.uniform`."""

    shape: tuple[int, ...]
    coarse: bool


Draws = Sequence[Draw]


class ShapeRecorder(Noise):
    """Noise that is no noise: it records the shapes that a loss asks for."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(NoiseKey(0, "shapes"), device, dtype)
        self._recorded: dict[int, Draw] = {}

    @property
    def recorded(self) -> list[Draw]:
        """Every draw, in their order; samples that share noise count once."""
        return [self._recorded[draw] for draw in range(len(self._recorded))]

    def bits(self, shape: tuple[int, ...] | torch.Size) -> None:
        """There are none."""

    def _next(self, shape: tuple[int, ...], coarse: bool) -> Tensor:
        self._recorded.setdefault(self._draws, Draw(shape, coarse))  # a first pass may be computed again
        return torch.full(shape, 0.3, device=self.device, dtype=self.dtype)
