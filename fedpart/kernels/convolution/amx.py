"""Instructions that numba has no names for: products of matrices in tiles (AMX of x86).

There are eight tiles of 16 rows, or fewer, of 64 bytes. Tiles 0 to 3 are sums, in float32, of the products in
bfloat16 of tiles 4 and 5 with tiles 6 and 7. Addresses and distances are in bytes. Kernels that use tiles run
where :func:`available` says so, and leave them configured as they found them, for oneDNN.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from fedpart.kernels.convolution.lanes import BITS8, BITS64, features, typed

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64: arch_prctl(ARCH_REQ_XCOMP_PERM, ...)


@cache
def available() -> bool:
    """Whether what numba compiles may multiply tiles of bfloat16 in this process, for which it asks Linux."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    if not {"amx-tile", "amx-bf16"} <= features():
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)


def shapes(rows: int) -> Any:
    """What ``configure`` reads, ``[64]`` bytes: sums and left factors have so many rows, at most 16."""
    found = np.zeros(64, np.uint8)
    found[0] = 1  # the palette of eight tiles
    found[16:32].view(np.uint16)[:] = 64  # bytes in a row
    found[48:54], found[54:56] = rows, 16
    return found


def _instruction(name: str, operands: int, *tiles: int) -> Any:
    """``llvm.x86.NAME`` of given tiles and, as far as it has them, an address and a distance between rows."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        full, pointer = f"llvm.x86.{name}", BITS8.as_pointer()
        function = builder.module.globals.get(full)
        if function is None:
            kinds = [BITS8] * len(tiles) + [pointer, BITS64][:operands]
            function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), kinds), full)
        start = [builder.inttoptr(address, pointer) for address in values[:1]]
        builder.call(function, [ir.Constant(BITS8, tile) for tile in tiles] + start + list(values[1:]))
        return context.get_dummy_value()

    def none(context: Any) -> Any:
        return typed(0, generate)

    def one(context: Any, address: Any) -> Any:
        return typed(1, generate)

    def two(context: Any, address: Any, apart: Any) -> Any:
        return typed(2, generate)

    return intrinsic((none, one, two)[operands])


configure, configuration = _instruction("ldtilecfg", 1), _instruction("sttilecfg", 1)
zero0, zero1, zero2, zero3 = (_instruction("tilezero", 0, tile) for tile in range(4))
load0, load1, load2, load3 = (_instruction("tileloadd64", 2, tile) for tile in range(4))
load4, load5, load6, load7 = (_instruction("tileloadd64", 2, tile) for tile in range(4, 8))
store0, store1, store2, store3 = (_instruction("tilestored64", 2, tile) for tile in range(4))
add46, add47, add56, add57 = (
    _instruction("tdpbf16ps", 0, total, *factors)
    for total, factors in enumerate(((4, 6), (4, 7), (5, 6), (5, 7)))
)
