"""Instructions on sixteen lanes of a vector that numba's own loops do not come down to.

Addresses and distances are in bytes, and may be any: nothing has to lie at a multiple of a vector's size.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from fedpart.layers.pooling_kernels import NOWHERE

_BITS8, _BITS16, _BITS32, _BITS64 = (ir.IntType(size) for size in (8, 16, 32, 64))
_FLOAT = ir.FloatType()
_BYTES = {_BITS8: 1, _BITS16: 2, _BITS32: 4, _FLOAT: 4}
_LANES = 16
_WORDS = ir.VectorType(_BITS32, _LANES)


def features() -> set[str]:
    """Of the processor that numba compiles for, in LLVM's words; none where it compiles nothing."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return set()
    listed = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return {name[1:] for name in listed if name.startswith("+")}


def typed(operands: int, generate: Any) -> Any:
    """What numba asks of an intrinsic: types of its operands, all addresses or distances, and its code."""
    return types.void(*[types.intp] * operands), generate


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

    return typed(3, generate)


def _round16(context: Any, lanes: Any, out: Any) -> Any:
    """Round float32 ``lanes`` to bfloat16, into ``out``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _put(builder, _rounded(builder, _get(builder, values[0], _FLOAT)), values[1], _BITS16)
        return context.get_dummy_value()

    return typed(2, generate)


def _pool16(context: Any, first: Any, right: Any, down: Any, bias: Any, out: Any, place: Any) -> Any:
    """Pool and rectify sixteen channels of four pixels.

    Args:
        first: float32 of the upper left pixel, the others being ``right`` and ``down`` bytes away.
        bias: float32, added to all four.
        out: bfloat16, written: the maximum, or 0 if it is negative; what is not a number stays so.
        place: bytes, written: which of the four was the first maximum, row by row, or NOWHERE.
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
        _put(builder, builder.select(nowhere, _all(_BITS8, int(NOWHERE)), spot), place, _BITS8)
        return context.get_dummy_value()

    return typed(6, generate)


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
        passed = builder.bitcast(where("<", int(NOWHERE), right, zero), ir.VectorType(_FLOAT, _LANES))
        _put(builder, builder.fadd(_get(builder, total, _FLOAT), passed), total, _FLOAT)
        return context.get_dummy_value()

    return typed(5, generate)


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

    return typed(4, generate)


class _BFloat(ir.Type):  # type: ignore[misc]
    """bfloat16, of which llvmlite does not know; LLVM does."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


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
        factors: in the rows' type. There are :func:`together` or a multiple of it, of which those that
            ``count`` does not count are 0.
        count: how many there are, not an address.
        rows: where place 0 is.
        out: float32, as many as there are numbers in a row. Those of bfloat16 rows come in the order of
            ``ORDER``.
    """
    if not isinstance(vectors, types.IntegerLiteral) or not isinstance(halves, types.IntegerLiteral):
        return None
    number, half = vectors.literal_value, bool(halves.literal_value)
    size, pairs = (2, 2) if half else (4, 1)
    steps, sums = together(number, half) // pairs, number * pairs
    float16 = ir.VectorType(_FLOAT, _LANES)
    kind = ir.VectorType(_BFloat(), 2 * _LANES) if half else float16
    name = "llvm.x86.avx512bf16.dpbf16ps.512" if half else "llvm.fma.v16f32"

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, _, places, factors, count, rows, out = values
        module, start = builder.module, builder.block
        add = module.globals.get(name)
        if add is None:
            operands = [float16, kind, kind] if half else [kind, kind, float16]
            add = ir.Function(module, ir.FunctionType(float16, operands), name)
        loop, store, end = (builder.append_basic_block(part) for part in ("loop", "store", "end"))

        def at(address: Any, distance: int | Any) -> Any:
            distance = ir.Constant(_BITS64, distance) if isinstance(distance, int) else distance
            return builder.add(address, distance)

        def vector(address: Any) -> Any:
            return builder.load(builder.inttoptr(address, ir.VectorType(_BITS16, 32).as_pointer()), align=2)

        def word(address: Any) -> Any:
            return builder.load(builder.inttoptr(address, _BITS32.as_pointer()), align=2)

        def everywhere(word: Any) -> Any:
            first = builder.insert_element(_all(_BITS32, 0), word, ir.Constant(_BITS32, 0))
            return builder.bitcast(builder.shuffle_vector(first, first, _all(_BITS32, 0)), kind)

        builder.cbranch(builder.icmp_signed(">", count, ir.Constant(_BITS64, 0)), loop, end)
        builder.position_at_end(loop)
        i = builder.phi(_BITS64)
        i.add_incoming(ir.Constant(_BITS64, 0), start)
        before = [builder.phi(float16) for _ in range(steps * sums)]
        after: list[Any] = []
        for step in range(steps):
            entries = [at(i, step * pairs + n) for n in range(pairs)]
            begins = [
                at(rows, builder.sext(word(at(places, builder.mul(n, ir.Constant(_BITS64, 4)))), _BITS64))
                for n in entries
            ]
            factor = everywhere(word(at(factors, builder.mul(entries[0], ir.Constant(_BITS64, size)))))
            for m in range(number):
                row = [vector(at(begin, 64 * m)) for begin in begins]
                if half:
                    for order in _INTERLEAVED:
                        pair = builder.shuffle_vector(*row, ir.Constant(ir.VectorType(_BITS32, 32), order))
                        after.append(
                            builder.call(add, [before[len(after)], builder.bitcast(pair, kind), factor])
                        )
                else:
                    after.append(
                        builder.call(add, [factor, builder.bitcast(row[0], kind), before[len(after)]])
                    )
        for old, new in zip(before, after, strict=True):
            old.add_incoming(_all(_FLOAT, 0.0), start)
            old.add_incoming(new, loop)
        following = at(i, steps * pairs)
        i.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, store)
        builder.position_at_end(store)
        for m in range(sums):
            total = after[m]
            for step in range(1, steps):
                total = builder.fadd(total, after[step * sums + m])
            address = at(out, 64 * m)
            _put(builder, builder.fadd(_get(builder, address, _FLOAT), total), address, _FLOAT)
        builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(vectors, halves, *[types.intp] * 5), generate


def together(vectors: int, half: bool) -> int:
    """How many products ``add_products`` adds at a time: enough that none waits for the one before."""
    return max(1, 4 // vectors) * (2 if half else 1)


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
        address = builder.add(address, builder.mul(n, ir.Constant(_BITS64, size)))
        _put(builder, entries, address, entries.type.element)
    more = builder.ctpop(builder.bitcast(kept, _BITS16))
    builder.store(builder.add(n, builder.zext(more, _BITS64)), number)


def _function(builder: Any, name: str, result: Any, operands: list[Any]) -> Any:
    """One of LLVM's own."""
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, operands), name)


def _everywhere(builder: Any, number: Any) -> Any:
    """A vector of that number only."""
    first = builder.insert_element(_all(number.type, 0), number, ir.Constant(_BITS32, 0))
    return builder.shuffle_vector(first, first, _all(_BITS32, 0))


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
        counts: int64, how many entries these lists have, which changes.
        totals: float32, sixteen for each filter, to which the factors are added.
    """
    half = bool(halves.literal_value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, gradient, where, apart, cells, pixels, places, factors, length, counts, totals = values
        size, bits = (2, _BITS16) if half else (4, _BITS32)
        float16 = ir.VectorType(_FLOAT, _LANES)
        permute = _function(builder, "llvm.x86.avx512.permvar.si.512", _WORDS, [_WORDS, _WORDS])

        def at(address: Any, distance: Any, times: int) -> Any:
            return builder.add(address, builder.mul(distance, ir.Constant(_BITS64, times)))

        def by_filter(address: Any, kind: Any) -> list[Any]:
            rows = [_wide(builder, at(address, apart, _BYTES[kind] * n), kind) for n in range(_LANES)]
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
            lists = at(places, length, 4 * n), at(factors, length, size * n)
            _list(builder, half, kept, (found, numbers), lists, at(counts, ir.Constant(_BITS64, n), 8))
            numbers = builder.shl(numbers, _all(_BITS32, 16)) if half else numbers
            numbers = builder.bitcast(builder.select(kept, numbers, _all(_BITS32, 0)), float16)
            total = at(totals, ir.Constant(_BITS64, n), 64)
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
) -> Any:
    """List sixteen filters of a cell for each of its four pixels of which pooling has kept them.

    Args:
        halves, gradient, where: as in ``list_by_filter``.
        filters: int32, the place of each, or -1 for those that there are not.
        places, factors, length, counts: as in ``list_by_filter``, but of four lists.
    """
    half = bool(halves.literal_value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, gradient, where, filters, places, factors, length, counts = values
        begins, numbers = (
            _get(builder, filters, _BITS32),
            _wide(builder, gradient, _BITS16 if half else _BITS32),
        )
        spots, there = _get(builder, where, _BITS8), builder.icmp_signed(">=", begins, _all(_BITS32, 0))
        for n in range(4):
            kept = builder.and_(there, builder.icmp_unsigned("==", spots, _all(_BITS8, n)))
            lists = tuple(
                builder.add(address, builder.mul(length, ir.Constant(_BITS64, size * n)))
                for address, size in ((places, 4), (factors, 2 if half else 4))
            )
            count = builder.add(counts, ir.Constant(_BITS64, 8 * n))
            _list(builder, half, kept, (begins, numbers), lists, count)
        return context.get_dummy_value()

    return types.void(halves, *[types.intp] * 7), generate


_MIXED = [
    ir.Constant(
        ir.VectorType(_BITS32, _LANES), [n for lane in range(8) for n in (first + lane, first + lane + 16)]
    )
    for first in (0, 8)
]
"""Pairs of a lane of each of two vectors, of either half of them. Four times so, sixteen rows are columns."""

_INTERLEAVED = [
    [8 * lane + 4 * half + n + other for lane in range(4) for n in range(4) for other in (0, 32)]
    for half in range(2)
]
"""Of two vectors in bfloat16: pairs of a number of each, of either half of every 16 bytes, as the processor
interleaves them at once."""
ORDER = [8 * lane + 4 * half + n for half in range(2) for lane in range(4) for n in range(4)]
"""Which number of 32 ``add_products`` has added up in each place."""

copy: Any = intrinsic(_copy)
round16: Any = intrinsic(_round16)
pool16: Any = intrinsic(_pool16)
pair16: Any = intrinsic(_pair16)
send16: Any = intrinsic(_send16)
add_products: Any = intrinsic(prefer_literal=True)(_add_products)
list_by_filter: Any = intrinsic(prefer_literal=True)(_list_by_filter)
list_by_pixel: Any = intrinsic(prefer_literal=True)(_list_by_pixel)
