"""Explicit noise: every random number inside a loss comes from a named stream that the caller passes in."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpart.checks import NetworkError
from fedpart.randomness.streams import generator, sixteen_bits

_HALF_ULP = 2.0**-25  # float32 draws are multiples of 2**-24 in [0, 1); shifted, none is 0 but one becomes 1


class NoiseKey(NamedTuple):
    """Names one stream of noise; see :func:`fedpart.randomness.streams.generator`."""

    seed: int
    purpose: str
    counter: tuple[int, ...] = ()


class Noise:
    """The random numbers of one evaluation of the loss: the same key gives the same numbers, every time.

    They are drawn on the CPU, as float32, so that devices and precisions agree on them.
    """

    joined = False  # whether its rows are those of several batches

    def __init__(self, key: NoiseKey, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        self.key, self.device, self.dtype = key, torch.device(device), dtype
        self._draws = 0
        self._repeat, self._rows = 1, 0
        self._channels_last = False

    def uniform(self, shape: tuple[int, ...] | torch.Size, coarse: bool = False) -> Tensor:
        """The next numbers, uniform on the open interval (0, 1), of ``shape``; see :func:`uniform`.

        Every draw has its own section of the stream, so further rows (padding) leave all others as they are.
        """
        bits = self.bits(shape) if coarse else None
        if bits is not None:
            return coarse_numbers(bits).to(self.dtype)
        shared = self._shares(shape)
        draw = self._next((shape[0] // self._repeat, *shape[1:]) if shared else tuple(shape), coarse)
        self._draws += 1
        return draw.repeat_interleave(self._repeat, 0) if shared else draw

    def bits(self, shape: tuple[int, ...] | torch.Size) -> Tensor | None:
        """The next coarse numbers as int16, see :func:`coarse_numbers`; None: they are made from none."""
        images = self._channels_last and len(shape) == 4
        out = torch.empty((shape[0], *shape[2:], shape[1]) if images else tuple(shape), dtype=torch.int16)
        self._fill(out)
        out = out.to(self.device)
        return out.movedim(-1, 1) if images else out

    def _shares(self, shape: tuple[int, ...] | torch.Size) -> bool:
        """Whether rows of a draw of ``shape`` are repeated."""
        return self._repeat > 1 and len(shape) > 0 and shape[0] == self._rows

    def _next(self, shape: tuple[int, ...], coarse: bool) -> Tensor:
        """The numbers of draw ``self._draws``, of ``shape``: no row is there twice."""
        images = self._channels_last and len(shape) == 4
        memory = (shape[0], *shape[2:], shape[1]) if images else shape
        stream = generator(self.key.seed, self.key.purpose, *self.key.counter, section=self._draws)
        draw = torch.from_numpy(np.asarray(stream.random(memory, dtype="float32"))).add_(_HALF_ULP)
        draw = _inside(draw).to(self.device, self.dtype)
        return draw.movedim(-1, 1) if images else draw

    def _fill(self, out: Tensor) -> None:
        """Write the bits of the next draw into ``out``, a row after another in its memory."""
        shared = self._shares(out.shape)
        own = out.new_empty((len(out) // self._repeat, *out.shape[1:])) if shared else out
        key = self.key
        sixteen_bits(own.numpy().reshape(-1), key.seed, key.purpose, *key.counter, section=self._draws)
        self._draws += 1
        if shared:
            out.view(-1, self._repeat, *out.shape[1:]).copy_(own.unsqueeze(1))

    @contextmanager
    def repeated(self, times: int, rows: int) -> Iterator[None]:
        """Within this context, samples share noise: a draw of ``rows`` rows repeats each row ``times`` times.

        Draws with another first dimension, such as one number per channel, are shared by all rows anyway.
        """
        self._repeat, self._rows = times, rows
        try:
            yield
        finally:
            self._repeat = 1

    def rewind(self, channels_last: bool = False) -> None:
        """Begin again; see :meth:`active`."""
        self._draws, self._channels_last = 0, channels_last

    @contextmanager
    def active(self, channels_last: bool = False) -> Iterator[None]:
        """Within this context, :func:`uniform` draws from the beginning of this stream.

        ``channels_last`` is the memory format of draws that have the shape of images.
        """
        self.rewind(channels_last)
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


@contextmanager
def without_noise() -> Iterator[None]:
    """Within this context no stream is active, as in the backward pass."""
    token = _ACTIVE.set(None)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


class JoinedNoise(Noise):
    """The noise of several batches as that of one: each batch's rows draw from its own stream.

    ``rows`` are the examples of each batch, with ``samples`` rows each; ``padding`` examples follow and draw
    nothing. A draw that is not one set of numbers per row is a ValueError.
    """

    joined = True

    def __init__(self, parts: Sequence[Noise], rows: Sequence[int], samples: int, padding: int = 0) -> None:
        super().__init__(parts[0].key, parts[0].device, parts[0].dtype)
        self._parts, self._counts = parts, [count * samples for count in rows]
        self._padding = padding * samples

    def _next(self, shape: tuple[int, ...], coarse: bool) -> Tensor:
        self._check(shape)
        drawn = [
            part.uniform((share, *shape[1:])) for part, share in zip(self._parts, self._counts, strict=True)
        ]
        if self._padding:
            drawn.append(drawn[-1][:1].repeat(self._padding, *[1] * (len(shape) - 1)))
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    def bits(self, shape: tuple[int, ...] | torch.Size) -> Tensor | None:
        self._check(shape)
        return super().bits(shape)

    def _fill(self, out: Tensor) -> None:
        *own, padding = torch.split(out, [*self._counts, self._padding])
        for part, rows in zip(self._parts, own, strict=True):
            part._fill(rows)
        padding.copy_(own[-1][:1].expand_as(padding))

    def _check(self, shape: tuple[int, ...] | torch.Size) -> None:
        if not shape or shape[0] != sum(self._counts) + self._padding:
            raise common_noise(shape)

    @contextmanager
    def repeated(self, times: int, rows: int) -> Iterator[None]:
        with ExitStack() as stack:
            for part, share in zip(self._parts, self._counts, strict=True):
                stack.enter_context(part.repeated(times, share))
            yield

    @contextmanager
    def active(self, channels_last: bool = False) -> Iterator[None]:
        for part in self._parts:
            part.rewind(channels_last)
        with super().active(channels_last):
            yield


def common_noise(shape: tuple[int, ...] | torch.Size) -> ValueError:
    """The error of a draw of ``shape`` that does not consist of a set of numbers for each row."""
    return ValueError(
        f"a layer draws noise of shape {tuple(shape)}, which all examples share, so that clients cannot be "
        f"computed together"
    )


_ACTIVE: ContextVar[Noise | None] = ContextVar("fedpart_noise", default=None)


def uniform(shape: tuple[int, ...] | torch.Size, like: Tensor, coarse: bool = False) -> Tensor:
    """Uniform noise on (0, 1) for a layer: the loss's own stream, or torch's generator outside of a loss.

    A layer or transform of your own calls this instead of ``torch.rand``; everything that fedpart promises
    about reproducibility and engines then holds for it too.

    Args:
        shape: shape of the result.
        like: tensor whose device and dtype the result takes.
        coarse: multiples of 2**-16 (and a half) will do: they take a third of the time of 24 random bits.
    """
    draw = _draw(shape, like, coarse)
    return draw if draw.dtype == like.dtype else _inside(draw.to(like.dtype))


def order(count: int, like: Tensor) -> Tensor:
    """Uniform noise ``[count]`` whose order is a random permutation; a ValueError if rows would be mixed."""
    noise = _active()
    if noise is not None and noise.joined:
        raise common_noise((count,))
    return uniform((count,), like)


def coarse_bits(shape: tuple[int, ...] | torch.Size) -> Tensor | None:
    """The bits of the loss's own next coarse numbers, to look up what they become; None: there are none."""
    noise = _active()
    return None if noise is None else noise.bits(shape)


def coarse_numbers(bits: Tensor) -> Tensor:
    """What bits, int16, stand for: ``(bits + 2**15 + 1/2) 2**-16`` in float32, exactly."""
    return bits.to(torch.float32).mul_(2.0**-16).add_(0.5 + 2.0**-17)


def normal(shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
    """Standard normal noise for a layer; see :func:`uniform`."""
    draw: Tensor = torch.special.ndtri(_draw(shape, like, False))
    return draw.to(like.dtype)


def _active() -> Noise | None:
    """The loss's own stream, if there is one."""
    noise = _ACTIVE.get()
    if noise is not None and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise NetworkError(
            "A layer inside of torch.utils.checkpoint draws random numbers, which would be others when it is "
            "computed again; call it without checkpoint, or set its dropout to 0."
        )
    return noise


def _draw(shape: tuple[int, ...] | torch.Size, like: Tensor, coarse: bool) -> Tensor:
    """Uniform noise on the device of ``like``, in at least single precision."""
    noise = _active()
    if noise is not None:
        return noise.uniform(shape, coarse).to(like.device)
    wide = torch.promote_types(like.dtype, torch.float32)
    return _inside(torch.rand(shape, device=like.device, dtype=wide).add_(_HALF_ULP))


def _inside(draw: Tensor) -> Tensor:
    """``draw``, in place, with what was rounded up to 1 lowered to the largest number below it."""
    return draw.clamp_(max=1 - torch.finfo(draw.dtype).eps / 2)


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
