"""Explicit noise: every random number inside a loss comes from a named stream that the caller passes in."""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedpart.checks import NetworkError
from fedpart.kernels import rows_kernel
from fedpart.randomness.rows import keys_of, rows
from fedpart.randomness.strata import STRATA, samples_of, strata, stratified
from fedpart.randomness.streams import NoiseKey as NoiseKey
from fedpart.randomness.streams import draw, state_of

_HALF_ULP = 2.0**-25  # float32 draws are multiples of 2**-24 in [0, 1); shifted, none is 0 but one becomes 1


class Noise:
    """The random numbers of one evaluation of the loss: the same key gives the same numbers, every time.

    They are drawn in single precision, as on a CPU to the bit, so that devices and precisions agree on them.
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
        return _inside(self._next(shape, False).add_(_HALF_ULP)).to(self.dtype)

    def bits(self, shape: tuple[int, ...] | torch.Size) -> Tensor | None:
        """The next coarse numbers as int16, see :func:`coarse_numbers`; None: they are made from none."""
        return self._next(shape, True)

    def _next(self, shape: tuple[int, ...] | torch.Size, coarse: bool) -> Tensor:
        """The numbers of the next draw, in the memory format of images if that is asked for."""
        images = self._channels_last and len(shape) == 4
        memory = (shape[0], *shape[2:], shape[1]) if images else tuple(shape)
        shared = self._repeat > 1 and len(shape) > 0 and shape[0] == self._rows
        times = self._repeat if shared else 1
        drawn = self._draw((memory[0] // times, *memory[1:]) if shared else memory, coarse, times)
        self._draws += 1
        if shared:
            drawn = drawn.repeat_interleave(times, 0)
        return drawn.movedim(-1, 1) if images else drawn

    def _draw(self, memory: tuple[int, ...], coarse: bool, times: int) -> Tensor:
        """The numbers of draw ``self._draws`` as :func:`.rows` gives them, of the shape ``memory``; each row
        serves ``times`` rows that follow each other."""
        if rows_kernel(self.device) is not None:
            return rows(self._stream, self._draws, math.prod(memory), coarse).view(memory)
        out = torch.empty(memory, dtype=torch.int16 if coarse else torch.float32)
        key, start = state_of(self.key.seed, self.key.purpose, self.key.counter, self._draws)
        draw(out.numpy().reshape(-1), key, start)
        return out.to(self.device)

    @cached_property
    def _stream(self) -> Tensor:
        """The key of all draws, ``[1, 6]``, brought to the device once."""
        return torch.from_numpy(keys_of(self.key, 1)).to(self.device)

    def axis(self) -> int:
        """Which dimension of a shape that is asked for counts rows."""
        return 0

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

        ``channels_last`` is the memory format of draws that have the shape of images."""
        self.rewind(channels_last)
        with drawing_from(self):
            yield


@contextmanager
def drawing_from(noise: Noise | None) -> Iterator[None]:
    """Within this context this stream is active, where it stands; None: none is, as in the backward pass."""
    token = _ACTIVE.set(noise)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


class RowNoise(Noise):
    """The noise of rows that name their own streams; it can be drawn inside of ``vmap`` and captured graphs.

    Args:
        keys: ``[R, 6]``, see :func:`.keys_of`; under ``vmap`` those of one network.
        dtype: of the numbers.
        common: which draws, by their number, may be other than one set of numbers per row; those are a
            ValueError elsewhere. None: all, for the rows are those of one stream from beginning to end.

    Below ``vmap``, where torch's own functions ask, a draw is that of all networks.
    """

    def __init__(self, keys: Tensor, dtype: torch.dtype, common: Collection[int] | None = ()) -> None:
        super().__init__(NoiseKey(0, "rows"), keys.device, dtype)
        self._keys, self._common, self.joined = keys, common, common is not None

    def axis(self) -> int:
        functorch = torch._C._functorch
        return int(functorch.is_batchedtensor(self._keys) and functorch.peek_interpreter_stack() is None)

    def _next(self, shape: tuple[int, ...] | torch.Size, coarse: bool) -> Tensor:
        if not self.axis():
            return super()._next(shape, coarse)
        keys = torch._C._functorch.get_unwrapped(self._keys)
        count = len(keys)
        rowwise = len(shape) > 1 and shape[1] == len(keys[0])
        if not rowwise:
            self._check_common(shape[1:])
        all_rows = RowNoise(keys.flatten(0, 1) if rowwise else keys[:, 0], self.dtype)
        all_rows._draws, all_rows._repeat, all_rows._rows = self._draws, self._repeat, count * self._rows
        self._draws += 1
        flat = (count * shape[1], *shape[2:]) if rowwise else (count, math.prod(shape[1:]))
        return all_rows._next(flat, coarse).view(shape)

    def _draw(self, memory: tuple[int, ...], coarse: bool, times: int) -> Tensor:
        keys = self._keys
        if not memory or memory[0] * times != len(keys):
            self._check_common(memory)
            return rows(keys[:1], self._draws, math.prod(memory), coarse).view(memory)
        if times > 1:
            keys = torch.cat([keys[::times, :5], keys[::times, 5:] // times], 1)
        return rows(keys, self._draws, math.prod(memory[1:]), coarse).view(memory)

    def _check_common(self, shape: tuple[int, ...] | torch.Size) -> None:
        if self._common is not None and self._draws not in self._common:
            raise common_noise(shape)


class JoinedNoise(RowNoise):
    """The noise of several batches as that of one: each batch's rows draw from its own stream.

    ``rows`` are the examples of each batch, with ``samples`` rows each; ``padding`` examples follow, whose
    noise is that of an example."""

    def __init__(self, parts: Sequence[Noise], rows: Sequence[int], samples: int, padding: int = 0) -> None:
        keys = [keys_of(part.key, count * samples) for part, count in zip(parts, rows, strict=True)]
        keys.append(keys[-1][:1].repeat(padding * samples, 0))
        keys_there = torch.from_numpy(np.concatenate(keys)).to(parts[0].device)
        super().__init__(keys_there, parts[0].dtype)


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
    with strata(1, 0):
        return uniform((count,), like)


def coarse_bits(shape: tuple[int, ...] | torch.Size) -> Tensor | None:
    """The bits of the loss's own next coarse numbers, to look up what they become; None: there are none."""
    noise = _active()
    spread = STRATA.get() is not None and samples_of(shape, 0) > 1
    return None if noise is None or spread else noise.bits(shape)


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
    """Uniform noise on the device of ``like``, in at least single precision; see :func:`.strata`."""
    noise = _active()
    draw = _plain(noise, shape, like, coarse)
    axis = 0 if noise is None else noise.axis()
    samples = 1 if STRATA.get() is None else samples_of(shape, axis)
    if samples == 1:
        return draw
    return stratified(draw, _plain(noise, shape, like, False), samples, axis)


def _plain(noise: Noise | None, shape: tuple[int, ...] | torch.Size, like: Tensor, coarse: bool) -> Tensor:
    if noise is not None:
        return noise.uniform(shape, coarse).to(like.device)
    wide = torch.promote_types(like.dtype, torch.float32)
    return _inside(torch.rand(shape, device=like.device, dtype=wide).add_(_HALF_ULP))


def _inside(draw: Tensor) -> Tensor:
    """``draw``, in place, with what was rounded up to 1 lowered to the largest number below it."""
    return draw.clamp_max_(1 - torch.finfo(draw.dtype).eps / 2)


Draws = Sequence[tuple[int, ...]]
"""Shapes of what a loss asks for, as they lie in memory."""


class ShapeRecorder(Noise):
    """Noise that is no noise: it records the shapes that a loss asks for."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(NoiseKey(0, "shapes"), device, dtype)
        self._recorded: dict[int, tuple[int, ...]] = {}

    @property
    def recorded(self) -> list[tuple[int, ...]]:
        """Every draw, in their order; samples that share noise count once."""
        return [self._recorded[draw] for draw in range(len(self._recorded))]

    def bits(self, shape: tuple[int, ...] | torch.Size) -> None:
        """There are none."""

    def uniform(self, shape: tuple[int, ...] | torch.Size, coarse: bool = False) -> Tensor:
        """0.3 everywhere."""
        return self._next(shape, coarse)

    def _draw(self, memory: tuple[int, ...], coarse: bool, times: int) -> Tensor:
        self._recorded.setdefault(self._draws, memory)  # a first pass may be computed again
        return torch.full(memory, 0.3, device=self.device, dtype=self.dtype)
