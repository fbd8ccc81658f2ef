"""Sums of products that stay in registers until they are complete, sixteen lanes of a vector at a time.

Addresses and distances are in bytes, and may be any.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedpart.layers.lanes_kernels import (
    _BITS32,
    _BITS64,
    _FLOAT,
    _LANES,
    _all,
    _BFloat,
    _get,
    _pooled,
    _put,
    _rounded,
)

_FLOATS = ir.VectorType(_FLOAT, _LANES)
_WORDS = ir.VectorType(_BITS32, _LANES)


class _Factors:
    """Of products: vectors of float32, or of pairs of bfloat16, whose two products are added."""

    def __init__(self, builder: Any, half: bool) -> None:
        self.builder, self.half = builder, half
        self.kind = ir.VectorType(_BFloat(), 2 * _LANES) if half else _FLOATS
        name = "llvm.x86.avx512bf16.dpbf16ps.512" if half else "llvm.fma.v16f32"
        operands = [_FLOATS, self.kind, self.kind] if half else [self.kind, self.kind, _FLOATS]
        found = builder.module.globals.get(name)
        self.function = found or ir.Function(builder.module, ir.FunctionType(_FLOATS, operands), name)

    def vector(self, address: Any) -> Any:
        """Sixteen factors, or pairs of them."""
        return self.builder.bitcast(_get(self.builder, address, _BITS32), self.kind)

    def everywhere(self, address: Any) -> Any:
        """One factor, or pair, in all lanes."""
        return self.builder.bitcast(_everywhere(self.builder, address), self.kind)

    def add(self, total: Any, left: Any, right: Any) -> Any:
        """``total + left * right``."""
        return self.builder.call(self.function, [total, left, right] if self.half else [left, right, total])


def _everywhere(builder: Any, address: Any) -> Any:
    """A word in all lanes."""
    word = builder.load(builder.inttoptr(address, _BITS32.as_pointer()), align=2)
    first = builder.insert_element(_all(_BITS32, 0), word, ir.Constant(_BITS32, 0))
    return builder.shuffle_vector(first, first, _all(_BITS32, 0))


def _loop(builder: Any, count: Any, carried: list[tuple[Any, Any]], body: Any) -> list[Any]:
    """Run ``body`` so many times, at least once.

    Args:
        count: 64 bits.
        carried: pairs: a value before the loop, and its type.
        body: of the values of this time; returns the values of the next.

    Returns:
        The values after the loop.
    """
    before, loop = builder.block, builder.append_basic_block("loop")
    builder.branch(loop)
    builder.position_at_end(loop)
    time, *values = (builder.phi(kind) for kind in (_BITS64, *(kind for _, kind in carried)))
    found = body(list(values))
    following = builder.add(time, ir.Constant(_BITS64, 1))
    last, end = builder.block, builder.append_basic_block("end")
    starts = [ir.Constant(_BITS64, 0), *(start for start, _ in carried)]
    for phi, start, new in zip([time, *values], starts, [following, *found], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(new, last)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, end)
    builder.position_at_end(end)
    return list(found)


def _pool_products(
    context: Any,
    filters: Any,
    halves: Any,
    start: Any,
    right: Any,
    down: Any,
    rows: Any,
    steps: Any,
    weight: Any,
    apart: Any,
    bias: Any,
    out: Any,
    where: Any,
) -> Any:
    """Convolve four pixels of sixteen images with some filters, pool and rectify them.

    Args:
        filters: a literal: how many, at most :data:`MOST`.
        halves: a literal: 1 for words that are pairs of bfloat16, 0 for float32.
        start: words of sixteen images, from the first that the upper left pixel's kernel covers on; the other
            pixels' are ``right`` and ``down`` bytes away.
        rows, steps: numbers, at least 1: of the kernel's rows, which are ``down`` bytes away from each other
            in the images, and of the words that one covers.
        weight: words, by row, step and filter; its rows are ``apart``.
        bias: float32, of each filter.
        out: words, of each filter and image, written: float32, or bfloat16 in the lower half.
        where: like ``out``, written: which of the four was the first maximum, row by row, or NOWHERE.
    """
    if not isinstance(filters, types.IntegerLiteral) or not isinstance(halves, types.IntegerLiteral):
        return None
    number, half = filters.literal_value, bool(halves.literal_value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, _, start, right, down, rows, steps, weight, apart, bias, out, where = values
        factors = _Factors(builder, half)
        zeros = [(_all(_FLOAT, 0.0), _FLOATS)] * (4 * number)

        def at(address: Any, distance: int) -> Any:
            return builder.add(address, ir.Constant(_BITS64, distance))

        def step(values: list[Any]) -> list[Any]:
            pixels, kernel, *sums = values
            lower = builder.add(pixels, down)
            four = [pixels, builder.add(pixels, right), lower, builder.add(lower, right)]
            lanes = [factors.vector(address) for address in four]
            added = []
            for n in range(number):
                weight = factors.everywhere(at(kernel, 4 * n))
                added += [factors.add(sums[4 * n + m], pixel, weight) for m, pixel in enumerate(lanes)]
            return [at(pixels, 4 * _LANES), at(kernel, 4 * number), *added]

        def row(values: list[Any]) -> list[Any]:
            pixels, kernel, *sums = values
            carried = [(pixels, _BITS64), (kernel, _BITS64), *((total, _FLOATS) for total in sums)]
            _, _, *sums = _loop(builder, steps, carried, step)
            return [builder.add(pixels, down), builder.add(kernel, apart), *sums]

        _, _, *sums = _loop(builder, rows, [(start, _BITS64), (weight, _BITS64), *zeros], row)
        for n in range(number):
            added = builder.bitcast(_everywhere(builder, at(bias, 4 * n)), _FLOATS)
            largest, spot = _pooled(builder, sums[4 * n : 4 * n + 4], added, _BITS32)
            bits = (
                builder.zext(_rounded(builder, largest), _WORDS) if half else builder.bitcast(largest, _WORDS)
            )
            _put(builder, bits, at(out, 4 * _LANES * n), _BITS32)
            _put(builder, spot, at(where, 4 * _LANES * n), _BITS32)
        return context.get_dummy_value()

    return types.void(filters, halves, *[types.intp] * 10), generate


MOST = 6
"""Filters of ``pool_products``: four sums of each, four pixels and a weight fill 29 of 32 registers."""

pool_products: Any = intrinsic(prefer_literal=True)(_pool_products)
