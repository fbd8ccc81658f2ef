"""Sums of products that stay in registers until they are complete, sixteen lanes of a vector at a time.

Addresses and distances are in bytes, and may be any.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedpart.kernels.convolution.lanes import (
    BITS32,
    BITS64,
    FLOAT,
    FLOATS,
    LANES,
    WORDS,
    at,
    constant,
    everywhere,
    function,
    get,
    put,
    rounded,
    word,
)


class _BFloat(ir.Type):  # type: ignore[misc]
    """bfloat16, of which llvmlite does not know; LLVM does."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


class Multiply:
    """Code for products of sixteen float32, or of as many pairs of bfloat16, whose two products are added.

    Args:
        builder: of the code.
        half: whether factors are in bfloat16.
    """

    def __init__(self, builder: Any, half: bool) -> None:
        self.builder, self.half = builder, half
        self.kind = ir.VectorType(_BFloat(), 2 * LANES) if half else FLOATS
        name = "llvm.x86.avx512bf16.dpbf16ps.512" if half else "llvm.fma.v16f32"
        operands = [FLOATS, self.kind, self.kind] if half else [FLOATS] * 3
        self.function = function(builder, name, FLOATS, operands)

    def vector(self, address: Any) -> Any:
        """Factors that lie there."""
        kind = ir.VectorType(ir.IntType(16), 2 * LANES)
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=2)

    def everywhere(self, address: Any) -> Any:
        """One factor, or one pair, in all lanes."""
        return everywhere(self.builder, word(self.builder, address))

    def add(self, total: Any, left: Any, right: Any) -> Any:
        """``total + left * right``; factors are the bits of some type."""
        left, right = (self.builder.bitcast(factor, self.kind) for factor in (left, right))
        return self.builder.call(self.function, [total, left, right] if self.half else [left, right, total])

    def bits(self, total: Any) -> Any:
        """Sums as words: float32, or rounded to bfloat16 in the lower half."""
        if self.half:
            return self.builder.zext(rounded(self.builder, total), WORDS)
        return self.builder.bitcast(total, WORDS)


def _add_products(
    context: Any,
    vectors: Any,
    halves: Any,
    places: Any,
    factors: Any,
    count: Any,
    rows: Any,
    out: Any,
) -> Any:
    """Add ``sum_i factors[i] * row_i`` to ``out``, with all sums in registers.

    Args:
        vectors: of 64 bytes in a row, a literal number.
        halves: a literal: 1 for factors and rows in bfloat16, 0 for float32.
        places: int32, where row i begins, in bytes from ``rows`` on.
        factors: in the rows' type. There are :func:`products_at_once` or a multiple of it, of which those
            that ``count`` does not count are 0.
        count: how many there are, not an address.
        rows: where place 0 is.
        out: float32, as many as there are numbers in a row. Those of bfloat16 rows come in the order of
            ``ORDER``.
    """
    if not isinstance(vectors, types.IntegerLiteral) or not isinstance(halves, types.IntegerLiteral):
        return None
    number, half = vectors.literal_value, bool(halves.literal_value)
    steps, sums = products_at_once(number, half) // (1 + half), number * (1 + half)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, _, places, factors, count, rows, out = values
        nothing = [constant(FLOAT, 0.0)] * (steps * sums)
        found = _products(builder, half, number, nothing, (places, factors, count), rows)
        for m in range(sums):
            total = get(builder, at(builder, out, 64 * m), FLOAT)
            for part in found[m::sums]:
                total = builder.fadd(total, part)
            put(builder, total, at(builder, out, 64 * m), FLOAT)
        return context.get_dummy_value()

    return types.void(vectors, halves, *[types.intp] * 5), generate


def _slide_products(
    context: Any,
    vectors: Any,
    size: Any,
    halves: Any,
    places: Any,
    factors: Any,
    length: Any,
    counts: Any,
    number: Any,
    rows: Any,
    out: Any,
) -> Any:
    """Sums ``sum_i factors[i] * row_i`` of lists whose rows begin at a pixel, at the next one, and so on.

    Each pixel of the result is the sum of what the rows have there, all in registers until it is complete.

    Args:
        vectors: of 64 bytes in a pixel of a row, a literal number.
        size: pixels in a row, a literal.
        halves, places, factors, rows: as in ``add_products``; of the first list. Those of the next are
            ``length`` entries away, not an address.
        counts: int64, how many entries each list has.
        number: of lists, at least one, not an address.
        out: float32, ``number + size - 1`` pixels, written.
    """
    v, pixels, half = vectors.literal_value, size.literal_value, bool(halves.literal_value)
    sums = v * (1 + half)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, _, _, places, factors, length, counts, number, rows, out = values
        start = builder.block
        loop, end = (builder.append_basic_block(part) for part in ("pixels", "last"))

        def store(lanes: list[Any], address: Any) -> None:
            for m, total in enumerate(lanes):
                put(builder, total, at(builder, address, 64 * m), FLOAT)

        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(BITS64)
        before = [builder.phi(FLOATS) for _ in range((pixels - 1) * sums)]
        first = builder.mul(k, length)
        count = builder.load(builder.inttoptr(at(builder, counts, k, 8), BITS64.as_pointer()))
        entries = at(builder, places, first, 4), at(builder, factors, first, 2 if half else 4), count
        found = _products(builder, half, v * pixels, before + [constant(FLOAT, 0.0)] * sums, entries, rows)
        store(found[:sums], at(builder, out, k, 64 * sums))
        for old, new in zip(before, found[sums:], strict=True):
            old.add_incoming(constant(FLOAT, 0.0), start)
            old.add_incoming(new, builder.block)
        following = at(builder, k, 1)
        k.add_incoming(ir.Constant(BITS64, 0), start)
        k.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, number), loop, end)
        builder.position_at_end(end)
        for n in range(1, pixels):
            store(found[n * sums : (n + 1) * sums], at(builder, out, at(builder, k, n), 64 * sums))
        return context.get_dummy_value()

    return types.void(vectors, size, halves, *[types.intp] * 7), generate


def _products(
    builder: Any, half: bool, number: int, sums: list[Any], entries: tuple[Any, Any, Any], rows: Any
) -> list[Any]:
    """Code that adds the products of ``add_products`` to vectors of ``sums``, in turn if there are more.

    Args:
        number: of vectors in a row.
        entries: places, factors, and their count.

    Returns:
        The sums, at the end of this code.
    """
    places, factors, count = entries
    size, pairs = (2, 2) if half else (4, 1)
    steps, multiply = len(sums) // (number * pairs), Multiply(builder, half)
    start = builder.block
    loop, end = (builder.append_basic_block(part) for part in ("products", "sums"))
    builder.cbranch(builder.icmp_signed(">", count, ir.Constant(BITS64, 0)), loop, end)
    builder.position_at_end(loop)
    i = builder.phi(BITS64)
    before = [builder.phi(FLOATS) for _ in sums]
    after: list[Any] = []
    for step in range(steps):
        first = at(builder, i, step * pairs)
        begins = [
            at(builder, rows, builder.zext(word(builder, at(builder, places, entry, 4)), BITS64))
            for entry in (at(builder, first, n) for n in range(pairs))
        ]
        factor = multiply.everywhere(at(builder, factors, first, size))
        for m in range(number):
            row = [multiply.vector(at(builder, begin, 64 * m)) for begin in begins]
            if half:
                orders = (ir.Constant(ir.VectorType(BITS32, 32), order) for order in _INTERLEAVED)
                row = [builder.shuffle_vector(*row, order) for order in orders]
            for lanes in row:
                after.append(multiply.add(before[len(after)], lanes, factor))
    for old, new, given in zip(before, after, sums, strict=True):
        old.add_incoming(given, start)
        old.add_incoming(new, loop)
    following = at(builder, i, steps * pairs)
    i.add_incoming(ir.Constant(BITS64, 0), start)
    i.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, end)
    builder.position_at_end(end)
    found = [builder.phi(FLOATS) for _ in sums]
    for total, given, new in zip(found, sums, after, strict=True):
        total.add_incoming(given, start)
        total.add_incoming(new, loop)
    return found


def products_at_once(vectors: int, half: bool) -> int:
    """How many products ``add_products`` adds at a time: enough that none waits for the one before."""
    return max(1, 4 // vectors) * (2 if half else 1)


_INTERLEAVED = [
    [8 * lane + 4 * half + n + other for lane in range(4) for n in range(4) for other in (0, 32)]
    for half in range(2)
]
"""Of two vectors in bfloat16: pairs of a number of each, of either half of every 16 bytes, as the processor
interleaves them at once."""
ORDER = [8 * lane + 4 * half + n for half in range(2) for lane in range(4) for n in range(4)]
"""Which number of 32 ``add_products`` has added up in each place."""

add_products: Any = intrinsic(prefer_literal=True)(_add_products)
slide_products: Any = intrinsic(prefer_literal=True)(_slide_products)
