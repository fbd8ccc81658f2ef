"""Draws of a network that was not written for fedpart: torch's own random functions, made reproducible."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedpart.checks import NetworkError
from fedpart.randomness.noise import order, uniform


class TorchDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context torch's random functions draw from the active noise, see :func:`.uniform`.

    It looks at operations below autograd, so that dropout is seen wherever it is called: as a layer, as a
    function in somebody's forward, inside of attention, between recurrent layers, as stochastic depth.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch not to import its compiler for this mode, which takes seconds and serves nobody here."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn = False  # whether anything was

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _drops_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        if (handed := kwargs.get("generator")) is not None:
            generators = (torch.default_generator, *torch.cuda.default_generators)  # the process's
            if handed._cdata not in {generator._cdata for generator in generators}:  # type: ignore[attr-defined]
                return func(*args, **kwargs)  # whether it moves from pass to pass is looked at
        draw = _DRAWS.get(func)
        kind = kwargs.get("dtype") or next((x.dtype for x in args if isinstance(x, Tensor)), None)
        if draw is None or (kind is not None and kind.is_complex):
            name = str(func).removeprefix("aten.").partition(".")[0]
            numbers = "random" if draw is None else "complex random"
            raise NetworkError(
                f"The network draws {numbers} numbers with torch's {name}, for which there is no "
                f"reproducible noise; draw with torch.rand, torch.randn or fedpart.uniform in its forward()."
            )
        self.drawn = True
        return draw(*args, **kwargs)


def _drops_nothing(func: Any, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether this is a kernel of attention or of a recurrent layer that might drop numbers, and does not."""
    arguments = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    drops = arguments.get("dropout_p", arguments.get("dropout", 0.0)) and arguments.get("train", True)
    return not drops and any(kind in func._schema.name for kind in ("attention", "_cudnn_rnn"))


def _like(shape: Sequence[int], kwargs: Any) -> Tensor:
    """A tensor of hardly any memory, with the dtype and the device that a factory function is asked for."""
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return torch.empty((), dtype=dtype, device=kwargs.get("device")).expand(tuple(shape))


def _same(like: Tensor, kwargs: Any) -> Tensor:
    """As :func:`_like`, with the shape of a tensor, and with what is not asked for from it."""
    options = {key: value for key, value in kwargs.items() if value is not None}
    return _like(like.shape, {"dtype": like.dtype, "device": like.device, **options})


def _uniform(like: Tensor, coarse: bool = False) -> Tensor:
    """Numbers in at least single precision: 16 bits would make a rate of 10% one of 10.2%."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return uniform(like.shape, like=torch.empty((), dtype=dtype, device=like.device), coarse=coarse)


def _normal(like: Tensor) -> Tensor:
    draw: Tensor = torch.special.ndtri(_uniform(like))
    return draw.to(like.dtype)


def _whole(like: Tensor, low: int, high: int) -> Tensor:
    """Integers from ``low`` to ``high - 1``."""
    u = _uniform(like).to(torch.float64)
    return (low + (high - low) * u).floor_().clamp_(max=high - 1).to(like.dtype)


def _bernoulli(like: Tensor, p: float | Tensor = 0.5, **_: Any) -> Tensor:
    coarse = not isinstance(p, Tensor)  # a rate of one's own choice may be off by 2**-17
    return (_uniform(like, coarse) < p).to(like.dtype)


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    kept = _bernoulli(x, 1 - p).bool() if train or train is None else torch.ones_like(x, dtype=torch.bool)
    return x * kept / (1 - p if p < 1 and (train or train is None) else 1), kept


def _rrelu(x: Tensor, noise: Tensor, low: float = 1 / 8, high: float = 1 / 3, *rest: Any, **_: Any) -> Tensor:
    slope = low + (high - low) * _uniform(x) if rest[:1] == (True,) else torch.full_like(x, (low + high) / 2)
    noise.copy_(torch.where(x <= 0, slope, 1))
    return x * noise


def _rand(like: Tensor) -> Tensor:
    return uniform(like.shape, like=like)


def _int_from(like: Tensor, low: int, high: int | None = None, **_: Any) -> Tensor:
    return like.copy_(_whole(like, low, _count(like.dtype, low) if high is None else high))


def _count(dtype: torch.dtype, low: int = 0) -> int:
    """Below which ``random_()`` draws, from ``low`` on: what the type holds, at most 2**24 of them."""
    if dtype == torch.bool:
        return 2
    held = 2 / torch.finfo(dtype).eps + 1 if dtype.is_floating_point else torch.iinfo(dtype).max + 1
    return int(min(held, low + 2**24))


def _permutation(count: int, **kwargs: Any) -> Tensor:
    like = _like((count,), {"device": kwargs.get("device")})
    return order(count, like).argsort().to(kwargs.get("dtype") or torch.int64)


_aten = torch.ops.aten
_DRAWS: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli.default: lambda p, **_: _bernoulli(p, p),
    _aten.bernoulli.p: _bernoulli,
    _aten.bernoulli_.float: lambda x, p=0.5, **_: x.copy_(_bernoulli(x, p)),
    _aten.bernoulli_.Tensor: lambda x, p, **_: x.copy_(_bernoulli(x, p)),
    _aten.native_dropout.default: _native_dropout,
    _aten.rrelu_with_noise.default: _rrelu,
    _aten.rrelu_with_noise_.default: lambda x, *rest, **_: x.copy_(_rrelu(x, *rest)),
    _aten.rand.default: lambda shape, **kwargs: _rand(_like(shape, kwargs)),
    _aten.rand_like.default: lambda x, **kwargs: _rand(_same(x, kwargs)),
    _aten.uniform_.default: lambda x, low=0.0, high=1.0, **_: x.copy_(low + (high - low) * _uniform(x)),
    _aten.randn.default: lambda shape, **kwargs: _normal(_like(shape, kwargs)),
    _aten.randn_like.default: lambda x, **kwargs: _normal(_same(x, kwargs)),
    _aten.normal_.default: lambda x, mean=0.0, std=1.0, **_: x.copy_(mean + std * _normal(x)),
    _aten.normal.float_float: lambda mean, std, shape, **kwargs: mean + std * _normal(_like(shape, kwargs)),
    _aten.normal.Tensor_float: lambda mean, std=1.0, **_: mean + std * _normal(mean),
    _aten.normal.float_Tensor: lambda mean, std, **_: mean + std * _normal(std),
    _aten.normal.Tensor_Tensor: lambda mean, std, **_: mean + std * _normal(mean + std),
    _aten.exponential_.default: lambda x, rate=1.0, **_: x.copy_(-_uniform(x).log() / rate),
    _aten.randint.default: lambda high, shape, **kwargs: _integers(0, high, shape, kwargs),
    _aten.randint.low: lambda low, high, shape, **kwargs: _integers(low, high, shape, kwargs),
    _aten.randint_like.default: lambda x, high, **kwargs: _whole(_same(x, kwargs), 0, high),
    _aten.randint_like.low_dtype: lambda x, low, high, **kwargs: _whole(_same(x, kwargs), low, high),
    _aten.random_.default: lambda x, **_: _int_from(x, 0),
    _aten.random_.to: lambda x, high, **_: _int_from(x, 0, high),
    getattr(_aten.random_, "from"): _int_from,
    _aten.randperm.default: _permutation,
}  # fmt: skip
# The process's own generator may be handed over by name.
# torch 2.8 has some of these overloads, and newer ones have all.
_DRAWS |= {
    getattr(draw.overloadpacket, overload): _DRAWS[draw]
    for overload, draws in {
        "generator": [
            _aten.rand.default, _aten.randn.default, _aten.randint.default, _aten.randperm.default,
            _aten.rand_like.default, _aten.randn_like.default, _aten.randint_like.default,
        ],
        "low_generator": [_aten.randint.low],
        "low_generator_dtype": [_aten.randint_like.low_dtype],
    }.items()
    for draw in draws
    if overload in draw.overloadpacket.overloads()
}  # fmt: skip


def _integers(low: int, high: int, shape: Sequence[int], kwargs: Any) -> Tensor:
    return _whole(_like(shape, {**kwargs, "dtype": kwargs.get("dtype") or torch.int64}), low, high)
