"""What numpy's Philox4x64-10 gives, in half of its time."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedpart.kernels.compiling import jit

# Salmon et al. (2011): multipliers, and what is added to the key in each round.
_FIRST, _SECOND = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_FIRST_KEY, _SECOND_KEY = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_ONE = np.uint64(1)
_WORDS = 512  # made at a time: they stay in the nearest cache


def _product(context: Any, a: Any, b: Any) -> Any:
    """Upper and lower half of the product of two words: one instruction, for which numba has no name."""
    signature = types.UniTuple(types.uint64, 2)(types.uint64, types.uint64)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, signature: Any, factors: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(factor, wide) for factor in factors))
        upper = builder.lshr(product, ir.Constant(wide, 64))
        halves = [builder.trunc(half, ir.IntType(64)) for half in (upper, product)]
        return context.make_tuple(builder, signature.return_type, halves)

    return signature, generate


_multiply: Any = intrinsic(_product)


@jit
def sixteen_bits(out: Any, key: Any, start: Any) -> None:
    """Fill ``out``, flat int16, with the words that follow the counter ``start [4]`` under ``key [2]``."""
    words = np.empty(_WORDS, np.uint64)
    parts = words.view(np.int16)
    # Scalars, and a loop that copies: arrays might overlap, which a compiler has to expect again and again.
    counter, start_b, start_c, start_d = start[0], start[1], start[2], start[3]
    first_key, second_key = key[0], key[1]
    for done in range(0, out.size, parts.size):
        rest = min(parts.size, out.size - done)
        for block in range((rest + 15) // 16):
            counter += _ONE
            a, b, c, d = counter, start_b, start_c, start_d
            first, second = first_key, second_key
            for _ in range(10):
                upper, lower = _multiply(_FIRST, a)
                upper_c, lower_c = _multiply(_SECOND, c)
                a, b, c, d = upper_c ^ b ^ first, lower_c, upper ^ d ^ second, lower
                first += _FIRST_KEY
                second += _SECOND_KEY
            words[4 * block] = a
            words[4 * block + 1] = b
            words[4 * block + 2] = c
            words[4 * block + 3] = d
        target = out[done : done + rest]
        for i in range(rest):
            target[i] = parts[i]


@jit
def look_up(table: Any, places: Any, out: Any) -> None:
    """See :func:`.look_up_kernel`."""
    for i in range(out.size):
        out[i] = table[places[i]]
