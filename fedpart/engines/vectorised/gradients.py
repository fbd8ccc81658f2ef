"""Gradients of many jobs at once, their networks and their noise one on top of another (torch.func.vmap)."""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import RowNoise
from fedpart.task.gradients import Job, Objective
from fedpart.task.task import Batch, Task


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
    keys: Tensor,
    common: Collection[int] | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Losses of J networks, each on a batch of its own, and their gradients, as :func:`gradients` of each.

    The losses are one ``vmap``. The gradient of their sum holds every network's own, since no network's loss
    depends on another's weights. ``theta`` is ``[J, size]`` in the module's own order, or ``[size]``, one
    network for all, without training; ``psi`` is ``[P]`` for all or ``[J, P]``; of a batch ``[J, b, ...]``;
    ``keys [J, b S, 6]`` and ``common`` are those of :class:`.RowNoise`.
    Losses ``[J]`` are in nats; gradients are of theta ``[J, size]`` and psi ``[J, P]``, each or None.
    """

    def loss(theta: Tensor, psi: Tensor, parts: tuple[Any, ...], keys: Tensor) -> Tensor:
        noise = RowNoise(keys, task.dtype, common)
        return objective(task, job, space.tensors(theta), psi, Batch(*parts), noise)

    theta = theta.detach().requires_grad_(job.partition is not None)
    psi = psi.expand(batch.examples, -1).clone().requires_grad_() if job.psi else psi
    own = (None if theta.ndim == 1 else 0, None if psi.ndim == 1 else 0)
    of_batch = tuple(None if part is None else 0 for part in batch)
    mapped = torch.func.vmap(loss, in_dims=(*own, of_batch, 0), randomness="different")
    with _AsInTheLoop(), sdpa_kernel(SDPBackend.MATH):  # the kernel that takes all networks at once
        losses = mapped(theta, psi, tuple(batch), keys)
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
