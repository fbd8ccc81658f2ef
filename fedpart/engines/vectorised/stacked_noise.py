"""The noise of many jobs at once: what each would draw alone, one on top of another, for vmap."""

from collections.abc import Sequence
from concurrent.futures import Executor

import torch
from torch import Tensor

from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.shapes import Draws

_PADDING = 0.5  # any number inside (0, 1)


class GivenNoise(Noise):
    """Noise whose numbers are there already: under vmap a stream cannot be drawn per job.

    Args:
        draws: the numbers of every draw, in their order.
    """

    def __init__(self, draws: Sequence[Tensor]) -> None:
        super().__init__(NoiseKey(0, "given"))
        self._given = draws

    def bits(self, shape: tuple[int, ...] | torch.Size) -> None:
        """There are none."""

    def uniform(self, shape: tuple[int, ...] | torch.Size, coarse: bool = False) -> Tensor:
        """The next numbers; below vmap, where torch's own functions ask, those of all jobs at once."""
        draw = self._given[self._draws] if self._draws < len(self._given) else None
        below = draw is not None and len(shape) > draw.dim() and torch._C._functorch.is_batchedtensor(draw)
        if draw is None or not below:
            return super().uniform(shape, coarse)
        draw = torch._C._functorch.get_unwrapped(draw)
        if self._shares(shape[1:]):
            draw = draw.repeat_interleave(self._repeat, 1)
        self._draws += 1
        return self._checked(draw, shape)

    def _next(self, shape: tuple[int, ...], coarse: bool) -> Tensor:
        return self._checked(self._given[self._draws] if self._draws < len(self._given) else None, shape)

    def _checked(self, draw: Tensor | None, shape: tuple[int, ...] | torch.Size) -> Tensor:
        if draw is None or draw.shape != shape:
            given = "none" if draw is None else tuple(draw.shape)
            raise ValueError(f"the loss asks for noise of shape {tuple(shape)}, where it was {given} before")
        return draw


def stacked_draws(
    keys: Sequence[NoiseKey],
    draws: Sequence[Draws],
    padded: Draws,
    device: torch.device,
    dtype: torch.dtype,
    threads: Executor | None = None,
) -> tuple[Tensor, ...]:
    """Every draw of all jobs, ``[jobs, *padded shape]`` each.

    Args:
        keys: of the jobs' streams.
        draws: of each job; they are what the job draws when it is alone, to the bit.
        padded: of the draws of the largest job, at least as large in every dimension.
        device, dtype: see :class:`.Noise`.
        threads: draw for several jobs at a time; the numbers are the same.
    """
    pinned = device.type == "cuda"
    stacks = [torch.full((len(keys), *largest.shape), _PADDING, pin_memory=pinned) for largest in padded]

    def draw(job: int) -> None:
        noise = Noise(keys[job])
        for stack, (shape, coarse) in zip(stacks, draws[job], strict=True):
            stack[job][tuple(slice(length) for length in shape)] = noise.uniform(shape, coarse)

    list((threads.map if threads else map)(draw, range(len(keys))))
    return tuple(upload(stack, device, dtype) for stack in stacks)


def upload(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``tensor`` on ``device``, in ``dtype`` if given; a GPU goes on with what it has to do meanwhile."""
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True).to(dtype or tensor.dtype)
