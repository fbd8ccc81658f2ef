"""vmap over networks: what ``torch.func.vmap`` would change about a network's own arithmetic, put right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

# vmap takes these apart before autocast sees them.
_AUTOCAST = frozenset(
    (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
)


def vmapped(function: Callable[..., Tensor], in_dims: tuple[Any, ...]) -> Callable[..., Tensor]:
    """``function`` of one network's tensors as a function of those of many, see ``torch.func.vmap``.

    As in the loop, convolutions heed autocast, and a token beyond its vocabulary ends in an error or a loss
    that is not a number. Attention is computed by the kernel that takes all networks at once.
    """
    mapped = torch.func.vmap(function, in_dims=in_dims, randomness="different")

    def call(*arguments: Any) -> Tensor:
        with _AsInTheLoop(), sdpa_kernel(SDPBackend.MATH):
            result: Tensor = mapped(*arguments)
        return result

    return call


class _AsInTheLoop(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
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
