"""Randomness as a function: every stream is named by (seed, purpose, counters), none is carried along.

A stream is a Philox counter-based generator (Salmon et al. 2011) whose key is the seed and a hash of the
purpose, and whose counter starts at the given numbers. Nothing has to be stored to resume."""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from fedpart.kernels import random_bits_kernel

_MASK = (1 << 64) - 1


class NoiseKey(NamedTuple):
    """Names one stream of noise; see :func:`generator`."""

    seed: int
    purpose: str
    counter: tuple[int, ...] = ()


def generator(seed: int, purpose: str, *counter: int, section: int = 0) -> np.random.Generator:
    """The random stream of ``(seed, purpose, *counter)``; different purposes are independent.

    There are up to three counters, e.g. round, client, step. ``section`` says where in the stream to begin,
    in steps of 2**35 single-precision numbers."""
    key, start = state_of(seed, purpose, counter, section)
    return np.random.Generator(np.random.Philox(key=key, counter=start))


def draw(out: Any, key: Any, start: Any) -> None:
    """Fill ``out``, flat and contiguous, with the numbers after the counter ``start [4]`` under ``key [2]``.

    int16: the words' bits, least significant first; float32: multiples of 2**-24 in [0, 1)."""
    key, start = np.array(key, dtype=np.uint64), np.array(start, dtype=np.uint64)
    kernel = random_bits_kernel() if out.dtype == np.int16 else None
    if kernel is not None:
        kernel(out, key, start)
        return
    stream = np.random.Generator(np.random.Philox(key=key, counter=start))
    if out.dtype == np.int16:
        words = stream.integers(2**64, size=-(-out.size // 4), dtype=np.uint64)
        out[:] = words.astype("<u8", copy=False).view("<i2")[: out.size]
    else:
        stream.random(out=out, dtype="float32")


def state_of(seed: int, purpose: str, counter: tuple[int, ...], section: int) -> tuple[Any, Any]:
    """Philox's key ``[2]`` and counter ``[4]``."""
    if len(counter) > 3:
        raise ValueError(f"A random stream takes at most three counters, got {len(counter)}: {counter}.")
    digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
    key = np.array([int(seed) & _MASK, int.from_bytes(digest, "little")], dtype=np.uint64)
    # The lowest word counts the numbers drawn from the stream; the three above it name the stream.
    start = np.array([section << 32, *counter, *([0] * (3 - len(counter)))], dtype=np.uint64)
    return key, start
