"""A concrete mask whose noise is coarse: its 65,536 values are computed once, and looked up from then on."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedpart.kernels import look_up_kernel
from fedpart.randomness.noise import coarse_numbers


def keep(u: Tensor, logit: Tensor, temperature: float) -> Tensor:
    """``(1 - z) / (1 - p)`` for noise ``u`` in (0, 1), which is overwritten; see ConcreteDropout."""
    opened = u.logit_().add_(logit).mul_(-1 / temperature).sigmoid_()
    return opened * (1 + logit.exp())  # 1 / (1 - p) = 1 + e^logit


def masked(x: Tensor, bits: Tensor, logit: Tensor, temperature: float) -> Tensor:
    """``x * keep(coarse_numbers(bits), logit, temperature)``, differentiable once in ``x`` and ``logit``.

    Args:
        x: any shape and floating type; its gradient, and the mask, have this type.
        bits: int16, of that shape; fastest where its layout in memory is that of ``x``.
        logit: scalar, of the drop rate; the mask is computed in its type.
        temperature: of the relaxation.
    """
    product: Tensor = _Masked.apply(x, bits, logit, temperature)
    return product


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: Tensor, logit: Tensor, temperature: float) -> Tensor:
        if logit.device.type == "cpu":
            tables = _tables_of(logit.item(), temperature, logit.dtype, x.dtype)
        else:
            tables = _tables(logit, temperature, x.dtype)
        mask = _look_up(tables[0], bits)
        ctx.save_for_backward(mask, *((x, bits, tables[1]) if ctx.needs_input_grad[2] else ()))
        return x * mask

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        mask, *of_logit = ctx.saved_tensors
        if gradient.stride() != mask.stride():  # two layouts at once take four times as long
            gradient = torch.empty_like(mask).copy_(gradient)
        slope = None
        if of_logit:
            x, bits, slopes = of_logit
            slope = _look_up(slopes, bits).mul_(gradient * x).sum()
        return gradient * mask if ctx.needs_input_grad[0] else None, None, slope, None


def _look_up(table: Tensor, bits: Tensor) -> Tensor:
    """``table[bits]``, in the memory layout of ``bits``; entries are in the order of 0..32767, -32768..-1."""
    out = torch.empty_like(bits, dtype=table.dtype)
    places, flat = _flat(bits), _flat(out)
    kernel = look_up_kernel(out)
    if kernel is None:
        torch.index_select(table, 0, places.to(torch.int32).bitwise_and_(0xFFFF), out=flat)
    else:
        kernel(table, places, flat)
    return out


def _flat(dense: Tensor) -> Tensor:
    """All elements in the order in which they lie in memory, without gaps."""
    return dense.as_strided((dense.numel(),), (1,))


@lru_cache(maxsize=32)
def _tables_of(
    logit: float, temperature: float, dtype: torch.dtype, dtype_of_x: torch.dtype
) -> tuple[Tensor, Tensor]:
    """:func:`_tables` on the CPU: psi is the same for all steps of a round."""
    return _tables(torch.tensor(logit, dtype=dtype), temperature, dtype_of_x)


@torch.no_grad()
def _tables(logit: Tensor, temperature: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The mask for every 16 bits in ``dtype``, and its derivative in ``logit``."""
    bits = torch.arange(2**16, dtype=torch.int32, device=logit.device).to(torch.int16)
    u = coarse_numbers(bits).to(logit.dtype)
    dropped = torch.sigmoid((u.logit() + logit) / temperature)
    values = keep(u, logit, temperature)
    return values.to(dtype), values * (logit.sigmoid() - dropped / temperature)
