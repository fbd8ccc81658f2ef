"""Randomness as a function: every stream is named by (seed, purpose, counters), none is carried along.

A stream is a Philox counter-based generator (Salmon et al. 2011) whose key is the seed and a hash of the
purpose, and whose counter starts at the given numbers. Nothing has to be stored to resume, and the order in
which clients answer changes nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np

_MASK = (1 << 64) - 1


def generator(seed: int, purpose: str, *counter: int, section: int = 0) -> np.random.Generator:
    """The random stream of ``(seed, purpose, *counter)``.

    Args:
        seed: any integer (taken modulo 2**64).
        purpose: what the numbers are for, e.g. ``"cohort"``; different purposes are independent.
        *counter: up to three non-negative integers, e.g. round, client, step.
        section: where in the stream to begin, in steps of 2**35 single-precision numbers.
    """
    if len(counter) > 3:
        raise ValueError(f"A random stream takes at most three counters, got {len(counter)}: {counter}.")
    digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
    key = np.array([seed & _MASK, int.from_bytes(digest, "little")], dtype=np.uint64)
    # The lowest word counts the numbers drawn from the stream; the three above it name the stream.
    start = np.array([section << 32, *counter, *([0] * (3 - len(counter)))], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=start))
