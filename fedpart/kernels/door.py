"""The door of the room: by these functions the rest of the library asks for kernels."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpart.kernels.compiling import Kernel, compiles

if TYPE_CHECKING:
    from fedpart.kernels.pooling import Pooling

_LARGE = 2**24  # numbers of an image with room around it: of more, kernels could not tell places by 32 bits


@cache
def random_bits_kernel() -> Kernel | None:
    """Fills ``out``, flat int16, with words of Philox4x64-10 after a counter: ``(out, key [2], start [4])``.

    Arguments are numpy's arrays. It takes half of the time of numpy's generator, for the same bits.
    """
    if sys.byteorder != "little" or not compiles():
        return None
    from fedpart.kernels.philox import sixteen_bits

    return sixteen_bits


@cache
def rows_kernel(device: torch.device) -> Kernel | None:
    """Draws rows of noise on a GPU, to numpy's bits; see :func:`fedpart.randomness.rows.rows`."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    try:
        from fedpart.kernels.triton_philox import rows

        rows(torch.zeros(1, 6, dtype=torch.int64, device=device), 0, 1, True)
    except Exception as error:  # no C compiler, or a card that Triton does not know
        warnings.warn(f"Noise is drawn on the CPU, for Triton fails here: {error}", stacklevel=2)
        return None
    return rows


@cache
def look_up_kernel() -> Kernel | None:
    """``out[i] = table[places[i]]`` of numpy's arrays: ``(table [65536], places [N] uint16, out [N])``."""
    if not compiles():
        return None
    from fedpart.kernels.philox import look_up

    return look_up


def pooling_kernel(x: Tensor) -> Pooling | None:
    """What computes ``relu(max_pool2d(x, 2))`` and its derivative in one pass each, to torch's bits.

    For ``x [N, channels, height, width]``, channels-last, even in height and width, in bfloat16 or float32.
    """
    if not _plain(x) or x.ndim != 4 or not x.numel() or x.dtype not in (torch.bfloat16, torch.float32):
        return None
    if x.shape[2] % 2 or x.shape[3] % 2 or not x.is_contiguous(memory_format=torch.channels_last):
        return None
    if not compiles():
        return None
    from fedpart.kernels.pooling import Pooling

    return Pooling.of(x)


def pooled_convolution_kernel(
    kind: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor
) -> ModuleType | None:
    """What computes ``relu(max_pool2d(conv2d(x, weight, bias), 2))`` and its derivatives, a pass each.

    Its functions are ``forward``, ``of_images`` and ``of_parameters``; products are computed in ``kind``,
    bfloat16 or float32, and summed in another order than torch's. They need AVX-512, one thread,
    channels-last images of even height and width, and an odd kernel."""
    if not all(map(_plain, (x, weight, bias))) or torch.get_num_threads() > 1:
        return None
    if x.ndim != 4 or not x.numel() or bias.shape != weight.shape[:1]:
        return None
    channels, high, across = weight.shape[1:]  # maybe of a narrower network than that of the layer
    if channels * (x.shape[2] + high) * (x.shape[3] + across) > _LARGE or high != across or high % 2 == 0:
        return None
    if x.shape[1] != channels or x.stride(1) != 1 or x.shape[2] % 2 or x.shape[3] % 2 or not compiles():
        return None
    from fedpart.kernels.convolution import on_vectors

    return on_vectors if on_vectors.computes(kind, channels, high) else None


def _plain(x: Tensor) -> bool:
    """Whether numbers lie in this machine's memory, and no ``vmap`` is under way."""
    return x.device.type == "cpu" and not torch._C._functorch.is_functorch_wrapped_tensor(x)
