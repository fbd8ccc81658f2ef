"""Gradients of many jobs at once, their networks and their noise one on top of another (torch.func.vmap)."""

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import Draws, Noise, NoiseKey
from fedpart.task.gradients import Job, Objective
from fedpart.task.task import Batch, Task

_PADDING = 0.5  # any number inside (0, 1)


class GivenNoise(Noise):
    """Noise whose numbers are there already: under vmap a stream cannot be drawn per job."""

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
    """Every draw of all jobs, ``[jobs, *padded shape]`` each: what a job draws alone, to the bit, padded.

    ``padded`` are the draws of the largest job. ``threads`` draw for several jobs at a time.
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


# vmap takes these apart before autocast sees them.
_AUTOCAST = frozenset(
    (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
)


def stacked_gradients(
    task: Task,
    space: ParameterSpace,
    objective: Objective,
    job: Job,
    theta: Tensor,
    psi: Tensor,
    batch: Batch,
    draws: Sequence[Tensor],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Losses of J networks, each on a batch of its own, and their gradients, as :func:`gradients` of each.

    The losses are one ``vmap``. The gradient of their sum holds every network's own, since no network's loss
    depends on another's weights. ``theta`` is ``[J, size]`` in the module's own order, or ``[size]``, one
    network for all, without training; ``psi`` is ``[P]`` for all or ``[J, P]``; of a batch ``[J, b, ...]``.
    Losses ``[J]`` are in nats; gradients are of theta ``[J, size]`` and psi ``[J, P]``, each or None.
    """

    def loss(theta: Tensor, psi: Tensor, parts: tuple[Any, ...], draws: tuple[Tensor, ...]) -> Tensor:
        return objective(task, job, space.tensors(theta), psi, Batch(*parts), GivenNoise(draws))

    theta = theta.detach().requires_grad_(job.partition is not None)
    psi = psi.expand(batch.examples, -1).clone().requires_grad_() if job.psi else psi
    own = (None if theta.ndim == 1 else 0, None if psi.ndim == 1 else 0)
    of_batch = tuple(None if part is None else 0 for part in batch)
    mapped = torch.func.vmap(loss, in_dims=(*own, of_batch, 0), randomness="different")
    with _AsInTheLoop(), sdpa_kernel(SDPBackend.MATH):  # the kernel that takes all networks at once
        losses = mapped(theta, psi, tuple(batch), tuple(draws))
    wanted = [tensor for tensor in (theta, psi) if tensor.requires_grad]
    found = list(torch.autograd.grad(losses.sum(), wanted, allow_unused=True, materialize_grads=True))
    of_psi = found.pop() if job.psi else None
    return losses.detach(), found.pop() if found else None, of_psi


class _AsInTheLoop(TorchFunctionMode):
    """What ``torch.func.vmap`` would change about a network's own arithmetic, put right.

    Convolutions heed autocast; a token beyond its vocabulary ends in an error or a loss that is not a number.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _AUTOCAST:
            args = [_lowered(value) for value in args]
            kwargs = {name: _lowered(value) for name, value in kwargs.items()}
        result = func(*args, **kwargs)
        if func is F.embedding:  # the tables of all networks are one: it would read the next network's
            tokens, table = args[:2]
            outside = (tokens < 0) | (tokens >= len(table))
            result = result.masked_fill(outside.unsqueeze(-1), math.nan)
        return result


def _lowered(value: Any) -> Any:
    """A tensor in the precision of autocast, if that is on."""
    if not (isinstance(value, Tensor) and torch.is_autocast_enabled(value.device.type)):
        return value
    return value.to(torch.get_autocast_dtype(value.device.type))
