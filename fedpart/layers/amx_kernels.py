"""Instructions that numba has no names for: products of matrices in tiles (AMX of x86), and sixteen lanes.

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
from numba import config, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64: arch_prctl(ARCH_REQ_XCOMP_PERM, ...)
_BITS8, _BITS16, _BITS32, _BITS64 = (ir.IntType(size) for size in (8, 16, 32, 64))
_FLOAT = ir.FloatType()
_BYTES = {_BITS8: 1, _BITS16: 2, _BITS32: 4, _FLOAT: 4}
_LANES = 16
_NOWHERE = 4  # the place of a maximum that is not positive: ReLU gives 0, and passes no gradient


@cache
def available() -> bool:
    """Whether what numba compiles may multiply tiles of bfloat16 in this process, for which it asks Linux."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return False
    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    if not {"+amx-tile", "+amx-bf16"} <= set(features):
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)


def shapes(rows: int) -> Any:
    """What ``configure`` reads, ``[64]`` bytes: sums and left factors have so many rows, at most 16."""
    found = np.zeros(64, np.uint8)
    found[0] = 1  # the palette of eight tiles
    found[16:32].view(np.uint16)[:] = 64  # bytes in a row
    found[48:54], found[54:56] = rows, 16
    return found


def _typed(operands: int, generate: Any) -> Any:
    """What numba asks of an intrinsic: types of its operands, all addresses or distances, and its code."""
    return types.void(*[types.intp] * operands), generate


def _instruction(name: str, operands: int, *tiles: int) -> Any:
    """``llvm.x86.NAME`` of given tiles and, as far as it has them, an address and a distance between rows."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        full, pointer = f"llvm.x86.{name}", _BITS8.as_pointer()
        function = builder.module.globals.get(full)
        if function is None:
            kinds = [_BITS8] * len(tiles) + [pointer, _BITS64][:operands]
            function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), kinds), full)
        start = [builder.inttoptr(address, pointer) for address in values[:1]]
        builder.call(function, [ir.Constant(_BITS8, tile) for tile in tiles] + start + list(values[1:]))
        return context.get_dummy_value()

    def none(context: Any) -> Any:
        return _typed(0, generate)

    def one(context: Any, address: Any) -> Any:
        return _typed(1, generate)

    def two(context: Any, address: Any, apart: Any) -> Any:
        return _typed(2, generate)

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


def _get(builder: Any, address: Any, kind: Any) -> Any:
    """Lanes that lie from ``address`` on, wherever that is."""
    pointer = builder.inttoptr(address, ir.VectorType(kind, _LANES).as_pointer())
    return builder.load(pointer, align=_BYTES[kind])


def _put(builder: Any, lanes: Any, address: Any, kind: Any) -> None:
    pointer = builder.inttoptr(address, ir.VectorType(kind, _LANES).as_pointer())
    builder.store(lanes, pointer, align=_BYTES[kind])


def _all(kind: Any, value: float) -> Any:
    return ir.Constant(ir.VectorType(kind, _LANES), [value] * _LANES)


def _rounded(builder: Any, lanes: Any) -> Any:
    """The bits of float32 ``lanes`` in bfloat16: the nearest, of two the even one."""
    bits = builder.bitcast(lanes, ir.VectorType(_BITS32, _LANES))
    odd = builder.and_(builder.lshr(bits, _all(_BITS32, 16)), _all(_BITS32, 1))
    bits = builder.lshr(builder.add(builder.add(bits, _all(_BITS32, 0x7FFF)), odd), _all(_BITS32, 16))
    no_number = builder.fcmp_unordered("uno", lanes, lanes)
    bits = builder.select(no_number, _all(_BITS32, 0x7FC0), bits)
    return builder.trunc(bits, ir.VectorType(_BITS16, _LANES))


def _copy(context: Any, source: Any, out: Any, size: Any) -> Any:
    """Copy so many bytes."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, out, size = values
        source, out = (builder.inttoptr(address, _BITS8.as_pointer()) for address in (source, out))
        cgutils.raw_memcpy(builder, out, source, size, 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return _typed(3, generate)


def _round16(context: Any, lanes: Any, out: Any) -> Any:
    """Round float32 ``lanes`` to bfloat16, into ``out``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _put(builder, _rounded(builder, _get(builder, values[0], _FLOAT)), values[1], _BITS16)
        return context.get_dummy_value()

    return _typed(2, generate)


def _pool16(context: Any, first: Any, right: Any, down: Any, bias: Any, out: Any, place: Any) -> Any:
    """Pool and rectify sixteen channels of four pixels.

    Args:
        first: float32 of the upper left pixel, the others being ``right`` and ``down`` bytes away.
        bias: float32, added to all four.
        out: bfloat16, written: the maximum, or 0 if it is negative; what is not a number stays so.
        place: bytes, written: which of the four was the first maximum, row by row, or _NOWHERE.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        first, right, down, bias, out, place = values
        beneath = builder.add(first, down)
        largest, spot = _get(builder, first, _FLOAT), _all(_BITS8, 0)
        for n, pixel in enumerate((builder.add(first, right), beneath, builder.add(beneath, right)), start=1):
            lanes = _get(builder, pixel, _FLOAT)
            no_number = builder.fcmp_unordered("uno", lanes, lanes)
            larger = builder.or_(builder.fcmp_ordered(">", lanes, largest), no_number)
            largest = builder.select(larger, lanes, largest)
            spot = builder.select(larger, _all(_BITS8, n), spot)
        largest = builder.fadd(largest, _get(builder, bias, _FLOAT))
        nowhere = builder.fcmp_ordered("<=", largest, _all(_FLOAT, 0.0))
        largest = builder.select(nowhere, _all(_FLOAT, 0.0), largest)
        _put(builder, _rounded(builder, largest), out, _BITS16)
        _put(builder, builder.select(nowhere, _all(_BITS8, _NOWHERE), spot), place, _BITS8)
        return context.get_dummy_value()

    return _typed(6, generate)


def _pair16(context: Any, gradient: Any, place: Any, upper: Any, lower: Any, total: Any) -> Any:
    """Send sixteen channels' gradients back to the four pixels that were pooled, side by side in pairs.

    Args:
        gradient: bfloat16, of the pooled pixel.
        place: of ``pool16``.
        upper, lower: pairs of bfloat16, written: for each channel the left pixel, then the right one.
        total: float32, to which gradients that reach a pixel are added.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        gradient, place, upper, lower, total = values
        zero = _all(_BITS32, 0)
        left = builder.zext(_get(builder, gradient, _BITS16), ir.VectorType(_BITS32, _LANES))
        right = builder.shl(left, _all(_BITS32, 16))  # as a float32, the gradient itself
        spot = _get(builder, place, _BITS8)

        def where(comparison: str, n: int, lanes: Any, others: Any) -> Any:
            return builder.select(builder.icmp_unsigned(comparison, spot, _all(_BITS8, n)), lanes, others)

        _put(builder, where("==", 0, left, where("==", 1, right, zero)), upper, _BITS32)
        _put(builder, where("==", 2, left, where("==", 3, right, zero)), lower, _BITS32)
        passed = builder.bitcast(where("<", _NOWHERE, right, zero), ir.VectorType(_FLOAT, _LANES))
        _put(builder, builder.fadd(_get(builder, total, _FLOAT), passed), total, _FLOAT)
        return context.get_dummy_value()

    return _typed(5, generate)


def _send16(context: Any, gradient: Any, place: Any, number: Any, out: Any) -> Any:
    """Send sixteen channels' gradients back to one of the four pixels that were pooled.

    Args:
        gradient: bfloat16, of the pooled pixel.
        place: of ``pool16``.
        number: which of the four it is, not an address.
        out: bfloat16 of that pixel, written: its gradients, or 0 where another was the maximum.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        gradient, place, number, out = values
        lanes, spot = _get(builder, gradient, _BITS16), _get(builder, place, _BITS8)
        splat = builder.insert_element(
            _all(_BITS8, 0), builder.trunc(number, _BITS8), ir.Constant(_BITS32, 0)
        )
        number = builder.shuffle_vector(splat, splat, _all(_BITS32, 0))
        here = builder.icmp_unsigned("==", spot, number)
        _put(builder, builder.select(here, lanes, _all(_BITS16, 0)), out, _BITS16)
        return context.get_dummy_value()

    return _typed(4, generate)


copy: Any = intrinsic(_copy)
round16: Any = intrinsic(_round16)
pool16: Any = intrinsic(_pool16)
pair16: Any = intrinsic(_pair16)
send16: Any = intrinsic(_send16)
