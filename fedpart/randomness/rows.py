"""Rows of noise by their keys: one operation of torch that draws on a CPU or on a GPU, to the same bits.

As keys are a tensor, a captured graph draws new noise at each replay, and ``vmap`` draws for many networks.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.kernels import rows_kernel
from fedpart.randomness.streams import NoiseKey, draw, state_of

_library: Any = torch.library.Library("fedpart", "DEF")  # type: ignore[no-untyped-call]  # kept: it ends with this name
_library.define("rows(Tensor keys, int section, int width, bool coarse) -> Tensor")


def rows(keys: Tensor, section: int, width: int, coarse: bool) -> Tensor:
    """Noise ``[R, width]`` of R rows: row i is the numbers ``n width .. (n + 1) width - 1`` of its stream.

    Args:
        keys: ``[R, 6]`` int64 of :func:`.keys_of`: Philox's key, the counter that names a stream, and n.
        section: of the stream, see :func:`.generator`.
        width: numbers in a row.
        coarse: int16 bits, see :func:`.coarse_numbers`; else float32, the multiples of 2**-24 in [0, 1).
    """
    return torch.ops.fedpart.rows(keys, section, width, coarse)  # type: ignore[no-any-return]


def keys_of(key: NoiseKey, count: int) -> Any:
    """The keys of rows 0 to ``count - 1`` of a stream, numpy's ``[count, 6]`` int64."""
    named, start = state_of(key.seed, key.purpose, key.counter, 0)
    keys = np.empty((count, 6), np.uint64)
    keys[:, :2], keys[:, 2:5], keys[:, 5] = named, start[1:], np.arange(count)
    return keys.view(np.int64)


def _on_cpu(keys: Tensor, section: int, width: int, coarse: bool) -> Tensor:
    out = torch.empty(len(keys), width, dtype=torch.int16 if coarse else torch.float32)
    if not out.numel():
        return out
    named = keys.contiguous().numpy().view(np.uint64)
    # Rows that follow each other in one stream are drawn at once.
    steps = np.diff(named, axis=0, prepend=named[:1] - np.uint64(2))
    firsts = np.flatnonzero((steps[:, :5] != 0).any(1) | (steps[:, 5] != 1)).tolist()
    for first, last in zip(firsts, [*firsts[1:], len(named)], strict=True):
        key, (*stream, row) = named[first, :2], named[first, 2:].tolist()
        blocks, rest = divmod(row * width, 16 if coarse else 8)
        numbers = out[first:last].view(-1).numpy()
        if rest:
            numbers = np.empty(rest + numbers.size, numbers.dtype)
        draw(numbers, key, [(section << 32) + blocks, *stream])
        if rest:
            out[first:last] = torch.from_numpy(numbers[rest:]).view(-1, width)
    return out


def _on_gpu(keys: Tensor, section: int, width: int, coarse: bool) -> Tensor:
    kernel = rows_kernel(keys.device)
    if kernel is None:
        return _on_cpu(keys.cpu(), section, width, coarse).to(keys.device)
    return kernel(keys.contiguous(), section, width, coarse)  # type: ignore[no-any-return]


def _shape(keys: Tensor, section: int, width: int, coarse: bool) -> Tensor:
    return keys.new_empty(len(keys), width, dtype=torch.int16 if coarse else torch.float32)


def _of_many(info: Any, of: Any, keys: Tensor, section: int, width: int, coarse: bool) -> tuple[Tensor, int]:
    keys = keys.movedim(of[0], 0)
    return rows(keys.flatten(0, 1), section, width, coarse).view(*keys.shape[:2], width), 0


_library.impl("rows", _on_cpu, "CPU")
_library.impl("rows", _on_gpu, "CUDA")
_library.impl("rows", _on_gpu, "MPS")
_library.impl("rows", _shape, "Meta")
torch.library.register_vmap("fedpart::rows", _of_many, lib=_library)
