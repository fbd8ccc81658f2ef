"""Instructions that list what pooling has kept, for ``add_products``, sixteen numbers at a time."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedpart.layers.lanes_kernels import (
    _BITS8,
    _BITS16,
    _BITS32,
    _BITS64,
    _BYTES,
    _FLOAT,
    _LANES,
    _all,
    _at,
    _function,
    _get,
    _put,
)
from fedpart.layers.pooling_kernels import NOWHERE

_WORDS = ir.VectorType(_BITS32, _LANES)


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
    compress = _function(builder, "llvm.x86.avx512.mask.compress.v16i32", _WORDS, [_WORDS, _WORDS, kept.type])
    number = builder.inttoptr(count, _BITS64.as_pointer())
    n = builder.load(number)
    for entries, address, size in zip(lanes, lists, (4, 2 if half else 4), strict=True):
        entries = builder.call(compress, [entries, _all(_BITS32, 0), kept])
        if size == 2:
            entries = builder.trunc(entries, ir.VectorType(_BITS16, _LANES))
        _put(builder, entries, _at(builder, address, n, size), entries.type.element)
    more = builder.ctpop(builder.bitcast(kept, _BITS16))
    builder.store(builder.add(n, builder.zext(more, _BITS64)), number)


def _wide(builder: Any, address: Any, kind: Any) -> Any:
    """Numbers without a sign as numbers of 32 bits."""
    lanes = _get(builder, address, kind)
    return lanes if kind == _BITS32 else builder.zext(lanes, _WORDS)


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
        cells: int32, the place of each, or -1 for those that there are not.
        pixels: int32, what is to be added for each of the four, followed by any twelve.
        places, factors: of ``add_products``, the lists of the first filter. Those of the next are ``length``
            entries away, not an address. Sixteen entries are written to each, of which only kept ones count.
        counts: int64, how many entries each list has, which changes.
        totals: float32, sixteen for each filter, to which the factors are added.
    """
    half = bool(halves.literal_value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, gradient, where, apart, cells, pixels, places, factors, length, counts, totals = values
        size, bits = (2, _BITS16) if half else (4, _BITS32)
        float16 = ir.VectorType(_FLOAT, _LANES)
        permute = _function(builder, "llvm.x86.avx512.permvar.si.512", _WORDS, [_WORDS, _WORDS])

        def by_filter(address: Any, kind: Any) -> list[Any]:
            rows = [
                _wide(builder, _at(builder, address, apart, _BYTES[kind] * n), kind) for n in range(_LANES)
            ]
            for _ in range(4):
                pairs = zip(rows[:8], rows[8:], strict=True)
                rows = [builder.shuffle_vector(*pair, order) for pair in pairs for order in _MIXED]
            return rows

        begins, moved = _get(builder, cells, _BITS32), _get(builder, pixels, _BITS32)
        there = builder.icmp_signed(">=", begins, _all(_BITS32, 0))
        for n, (spots, numbers) in enumerate(
            zip(by_filter(where, _BITS8), by_filter(gradient, bits), strict=True)
        ):
            kept = builder.and_(there, builder.icmp_unsigned("<", spots, _all(_BITS32, int(NOWHERE))))
            found = builder.add(begins, builder.call(permute, [moved, spots]))
            lists = _at(builder, places, length, 4 * n), _at(builder, factors, length, size * n)
            _list(builder, half, kept, (found, numbers), lists, _at(builder, counts, 8 * n))
            numbers = builder.shl(numbers, _all(_BITS32, 16)) if half else numbers
            numbers = builder.bitcast(builder.select(kept, numbers, _all(_BITS32, 0)), float16)
            total = _at(builder, totals, 64 * n)
            _put(builder, builder.fadd(_get(builder, total, _FLOAT), numbers), total, _FLOAT)
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
        filters: int32, the place of each, or -1 for those that there are not.
        places, factors, length, counts: as in ``list_by_filter``, of the upper left pixel. The list of the
            right one is the next.
        down: lists from a pixel's to that of the one beneath, not an address.
    """
    half = bool(halves.literal_value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, gradient, where, filters, places, factors, length, counts, down = values
        begins = _get(builder, filters, _BITS32)
        numbers = _wide(builder, gradient, _BITS16 if half else _BITS32)
        spots, there = _get(builder, where, _BITS8), builder.icmp_signed(">=", begins, _all(_BITS32, 0))
        for n in range(4):
            kept = builder.and_(there, builder.icmp_unsigned("==", spots, _all(_BITS8, n)))
            pixel = _at(builder, ir.Constant(_BITS64, n % 2), down, n // 2)
            first = builder.mul(pixel, length)
            lists = _at(builder, places, first, 4), _at(builder, factors, first, 2 if half else 4)
            _list(builder, half, kept, (begins, numbers), lists, _at(builder, counts, pixel, 8))
        return context.get_dummy_value()

    return types.void(halves, *[types.intp] * 8), generate


_MIXED = [
    ir.Constant(
        ir.VectorType(_BITS32, _LANES), [n for lane in range(8) for n in (first + lane, first + lane + 16)]
    )
    for first in (0, 8)
]
"""Pairs of a lane of each of two vectors, of either half of them. Four times so, sixteen rows are columns."""

list_by_filter: Any = intrinsic(prefer_literal=True)(_list_by_filter)
list_by_pixel: Any = intrinsic(prefer_literal=True)(_list_by_pixel)
