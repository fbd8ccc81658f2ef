"""Concrete (relaxed Bernoulli) dropout with a learned rate (Maddison et al. 2016, Gal et al. 2017)."""

import math
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedpart.kernels import look_up_kernel
from fedpart.nn.hyperparameters.base import RARE, HyperModule, logit_of
from fedpart.randomness.noise import coarse_bits, coarse_numbers, uniform


def keep(u: Tensor, logit: Tensor, temperature: float) -> Tensor:
    """``(1 - z) / (1 - p)`` for noise ``u`` in (0, 1), which is overwritten; see ConcreteDropout."""
    opened = u.logit_().add_(logit).mul_(-1 / temperature).sigmoid_()
    return opened * (1 + logit.exp())  # 1 / (1 - p) = 1 + e^logit


def masked(x: Tensor, bits: Tensor, logit: Tensor, temperature: float) -> Tensor:
    """``x * keep(coarse_numbers(bits), logit, temperature)``, differentiable once in ``x`` and in ``logit``,
    a scalar, in whose type the mask is computed; ``bits`` are int16, of the shape of ``x``."""
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


_UNSIGNED = {2: torch.uint16, 4: torch.uint32, 8: torch.uint64}  # by size in bytes


def _look_up(table: Tensor, bits: Tensor) -> Tensor:
    """``table[bits]``, in the memory layout of ``bits``; entries are in the order of 0..32767, -32768..-1."""
    out = torch.empty_like(bits, dtype=table.dtype)
    places, flat = _flat(bits), _flat(out)
    kernel = look_up_kernel() if out.device.type == "cpu" else None
    if kernel is None:
        torch.index_select(table, 0, places.to(torch.int32).bitwise_and_(0xFFFF), out=flat)
    else:
        numbers = _UNSIGNED[table.dtype.itemsize]  # numpy has no bfloat16
        kernel(table.view(numbers).numpy(), places.view(torch.uint16).numpy(), flat.view(numbers).numpy())
    return out


def _flat(dense: Tensor) -> Tensor:
    """All elements in the order in which they lie in memory, without gaps."""
    return dense.as_strided((dense.numel(),), (1,))


@lru_cache(maxsize=32)
def _tables_of(logit: float, temperature: float, dtype: torch.dtype, of_x: torch.dtype) -> tuple[Tensor, ...]:
    """:func:`_tables` on the CPU: psi is the same for all steps of a round."""
    return _tables(torch.tensor(logit, dtype=dtype), temperature, of_x)


@torch.no_grad()
def _tables(logit: Tensor, temperature: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The mask for every 16 bits in ``dtype``, and its derivative in ``logit``."""
    bits = torch.arange(2**16, dtype=torch.int32, device=logit.device).to(torch.int16)
    u = coarse_numbers(bits).to(logit.dtype)
    dropped = torch.sigmoid((u.logit() + logit) / temperature)
    values = keep(u, logit, temperature)
    return values.to(dtype), values * (logit.sigmoid() - dropped / temperature)


class ConcreteDropout(HyperModule):
    """Dropout whose mask is a concrete random variable, differentiable in the logit of the drop rate.

    With drop rate ``p = sigmoid(logit)`` and noise ``u ~ U(0, 1)`` the relaxed drop indicator is
    ``z = sigmoid((logit + log u - log(1 - u)) / temperature)`` and the output ``x (1 - z) / (1 - p)``.
    In ``eval()`` it is the identity.

    Args:
        rate: initial drop rate p, in (0, 1); the paper starts at 0.1 (App. J.2).
        temperature: of the relaxation, > 0; the paper does not state it (Gal et al. use 0.1).
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("logit",)
    fixed = ("temperature",)
    limits: ClassVar = {"logit": (RARE, math.log(99.0))}  # rates from one in a million to 99%

    def __init__(self, rate: float = 0.1, temperature: float = 0.1) -> None:
        super().__init__()
        logit = logit_of(rate, temperature, "A drop rate", "leave the layer out for 0")
        self.temperature, self.logit = temperature, nn.Parameter(torch.tensor(logit))

    @property
    def p(self) -> float:
        """The current rate, for code that asks an nn.Dropout for it; nothing is learned through it."""
        return torch.sigmoid(self.logit.detach()).item()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape ``[B, ...]``; every element has its own mask value."""
        if not self.training:
            return x
        wrapped = any(map(torch._C._functorch.is_functorch_wrapped_tensor, (x, self.logit)))
        bits = None if wrapped else coarse_bits(x.shape)
        if bits is not None:
            return masked(x, bits, self.logit, self.temperature)
        u = uniform(x.shape, like=self.logit, coarse=True)  # in psi's precision, also under autocast
        return x * keep(u, self.logit, self.temperature).to(x.dtype)

    def physical(self) -> dict[str, float]:
        return {"rate [%]": 100 * torch.sigmoid(self.logit.detach()).item()}


class LearnedDropout(ConcreteDropout):
    """An ``nn.Dropout`` of a network whose rate is learned (``learn_dropout``)."""

    def plain(self) -> nn.Dropout:
        """The ``nn.Dropout`` that the network has again after training, with the rate found."""
        return nn.Dropout(self.p).train(self.training)


class TokenDropout(ConcreteDropout):
    """A layer behind an embedding that drops whole tokens: all features of one have the same mask value,
    which is that of :class:`.ConcreteDropout`, as are the arguments. Every token may be dropped, one that
    stands for the sentence too."""

    def forward(self, x: Tensor) -> Tensor:
        """``x``: embedded tokens ``[rows, tokens, features]``; every token has its own mask value."""
        if x.ndim != 3:
            fault = f"Token dropout takes embedded tokens [rows, tokens, features], got {tuple(x.shape)}"
            raise ValueError(f"{fault}; put it behind the embedding.")
        if not self.training:
            return x
        u = uniform((*x.shape[:2], 1), like=self.logit, coarse=True)
        return x * keep(u, self.logit, self.temperature).to(x.dtype)
