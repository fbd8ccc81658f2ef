"""Instructions that list what pooling has kept, for ``add_products``, sixteen numbers at a time."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedpart.kernels.convolution.lanes import (
    BITS8,
    BITS16,
    BITS32,
    BITS64,
    BYTES,
    FLOAT,
    FLOATS,
    LANES,
    WORDS,
    at,
    constant,
    function,
    get,
    put,
    transposed,
)
from fedpart.kernels.convolution.pooling import NOWHERE


def _list(
    builder: Any, half: bool, kept: Any, lanes: tuple[Any, Any], lists: tuple[Any, Any], count: Any
) -> None:
    """Put the entries that are kept at the end of a list, and zeros behind them.

    Args:
        kept: which of the sixteen.
        lanes: places, and bits of factors, all of 32 bits.
        lists: addresses of such places, and of such factors, of 16 bits if ``half``.
        count: address of the entries' number.
    """
    compress = function(builder, "llvm.x86.avx512.mask.compress.v16i32", WORDS, [WORDS, WORDS, kept.type])
    number = builder.inttoptr(count, BITS64.as_pointer())
    n = builder.load(number)
    for entries, address, size in zip(lanes, lists, (4, 2 if half else 4), strict=True):
        entries = builder.call(compress, [entries, constant(BITS32, 0), kept])
        if size == 2:
            entries = builder.trunc(entries, ir.VectorType(BITS16, LANES))
        put(builder, entries, at(builder, address, n, size), entries.type.element)
    more = builder.ctpop(builder.bitcast(kept, BITS16))
    builder.store(builder.add(n, builder.zext(more, BITS64)), number)


def _wide(builder: Any, address: Any, kind: Any) -> Any:
    """Numbers without a sign as numbers of 32 bits."""
    lanes = get(builder, address, kind)
    return lanes if kind == BITS32 else builder.zext(lanes, WORDS)


def _list_by_filter(
    context: Any,
    halves: Any,
    gradient: Any,
    where: Any,
    apart: Any,
    cells: Any,
    pixels: Any,
    places: Any,
    factors: Any,
    length: Any,
    counts: Any,
    totals: Any,
) -> Any:
    """List the pixels that pooling has kept of sixteen cells, for each of sixteen filters.

    Args:
        halves: a literal: 1 for gradients and factors in bfloat16, 0 for float32.
        gradient: of the first cell; those of the next are ``apart`` numbers away, not an address.
        where: of ``pooling_kernels.pool``; like ``gradient``.
        cells: int32, the place of each, or -1 behind the last one.
        pixels: int32, what is to be added for each of the four, followed by any twelve.
        places, factors: of ``add_products``, the lists of the first filter. Those of the next are ``length``
            entries away, not an address. Sixteen entries are written to each, of which only kept ones count.
        counts: int64, how many entries each list has, which changes.
        totals: float32, sixteen for each filter, to which the factors are added.
    """
    half = bool(halves.literal_value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, gradient, where, apart, cells, pixels, places, factors, length, counts, totals = values
        size, bits = (2, BITS16) if half else (4, BITS32)
        permute = function(builder, "llvm.x86.avx512.permvar.si.512", WORDS, [WORDS, WORDS])

        def by_filter(address: Any, kind: Any) -> list[Any]:
            addresses = [at(builder, address, apart, BYTES[kind] * n) for n in range(LANES)]
            return transposed(builder, [_wide(builder, place, kind) for place in addresses])

        begins, moved = get(builder, cells, BITS32), get(builder, pixels, BITS32)
        there = builder.icmp_signed(">=", begins, constant(BITS32, 0))
        for n, (spots, numbers) in enumerate(
            zip(by_filter(where, BITS8), by_filter(gradient, bits), strict=True)
        ):
            kept = builder.and_(there, builder.icmp_unsigned("<", spots, constant(BITS32, int(NOWHERE))))
            found = builder.add(begins, builder.call(permute, [moved, spots]))
            lists = at(builder, places, length, 4 * n), at(builder, factors, length, size * n)
            _list(builder, half, kept, (found, numbers), lists, at(builder, counts, 8 * n))
            numbers = builder.shl(numbers, constant(BITS32, 16)) if half else numbers
            numbers = builder.bitcast(builder.select(kept, numbers, constant(BITS32, 0)), FLOATS)
            total = at(builder, totals, 64 * n)
            put(builder, builder.fadd(get(builder, total, FLOAT), numbers), total, FLOAT)
        return context.get_dummy_value()

    return types.void(halves, *[types.intp] * 10), generate


def _list_by_pixel(
    context: Any,
    halves: Any,
    gradient: Any,
    where: Any,
    filters: Any,
    places: Any,
    factors: Any,
    length: Any,
    counts: Any,
    down: Any,
) -> Any:
    """List sixteen filters of a cell for each of its four pixels of which pooling has kept them.

    Args:
        halves, gradient, where: as in ``list_by_filter``.
        filters: int32, the place of each, or -1 behind the last one.
        places, factors, length, counts: as in ``list_by_filter``, of the upper left pixel. The list of the
            right one is the next.
        down: lists from a pixel's to that of the one beneath, not an address.
    """
    half = bool(halves.literal_value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, gradient, where, filters, places, factors, length, counts, down = values
        begins = get(builder, filters, BITS32)
        numbers = _wide(builder, gradient, BITS16 if half else BITS32)
        spots, there = get(builder, where, BITS8), builder.icmp_signed(">=", begins, constant(BITS32, 0))
        for n in range(4):
            kept = builder.and_(there, builder.icmp_unsigned("==", spots, constant(BITS8, n)))
            pixel = at(builder, ir.Constant(BITS64, n % 2), down, n // 2)
            first = builder.mul(pixel, length)
            lists = at(builder, places, first, 4), at(builder, factors, first, 2 if half else 4)
            _list(builder, half, kept, (begins, numbers), lists, at(builder, counts, pixel, 8))
        return context.get_dummy_value()

    return types.void(halves, *[types.intp] * 8), generate


list_by_filter: Any = intrinsic(prefer_literal=True)(_list_by_filter)
list_by_pixel: Any = intrinsic(prefer_literal=True)(_list_by_pixel)
