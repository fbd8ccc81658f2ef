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


def _at(builder: Any, address: Any, distance: Any, times: int = 1) -> Any:
    """An address so many times a distance farther."""
    if isinstance(distance, int):
        return builder.add(address, ir.Constant(_BITS64, distance * times))
    return builder.add(address, builder.mul(distance, ir.Constant(_BITS64, times)))


def _all(kind: Any, value: float) -> Any:
    return ir.Constant(ir.VectorType(kind, _LANES), [value] * _LANES)


def _function(builder: Any, name: str, result: Any, operands: list[Any]) -> Any:
    """One of LLVM's own."""
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, operands), name)


def _everywhere(builder: Any, number: Any) -> Any:
    """A vector of that number only."""
    first = builder.insert_element(_all(number.type, 0), number, ir.Constant(_BITS32, 0))
    return builder.shuffle_vector(first, first, _all(_BITS32, 0))


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


def _pooled(builder: Any, four: list[Any], bias: Any, kind: Any) -> tuple[Any, Any]:
    """The maximum of float32 lanes of four pixels, biased and rectified; which was the first, or NOWHERE."""
    largest, spot = four[0], _all(kind, 0)
    for n, lanes in enumerate(four[1:], start=1):
        no_number = builder.fcmp_unordered("uno", lanes, lanes)
        larger = builder.or_(builder.fcmp_ordered(">", lanes, largest), no_number)
        largest = builder.select(larger, lanes, largest)
        spot = builder.select(larger, _all(kind, n), spot)
    largest = builder.fadd(largest, bias)
    nowhere = builder.fcmp_ordered("<=", largest, _all(_FLOAT, 0.0))
    zero, none = _all(_FLOAT, 0.0), _all(kind, int(NOWHERE))
    return builder.select(nowhere, zero, largest), builder.select(nowhere, none, spot)


def _transpose16(context: Any, size: Any, source: Any, apart: Any, out: Any, distance: Any) -> Any:
    """Write sixteen rows of sixteen words column by column, or the lower parts of these words.

    Args:
        size: a literal: bytes of a word that are written, 1, 2 or 4.
        source, apart: of the first row, and from a row to the next.
        out, distance: of the first column, and from a column to the next, written.
    """
    if not isinstance(size, types.IntegerLiteral):
        return None
    kind = ir.IntType(8 * size.literal_value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, source, apart, out, distance = values

        def at(start: Any, step: Any, n: int) -> Any:
            return builder.add(start, builder.mul(step, ir.Constant(_BITS64, n)))

        rows = [_get(builder, at(source, apart, n), _BITS32) for n in range(_LANES)]
        for block in (8, 4, 2, 1):  # of so many rows and columns: two of every four change places
            kept = [_LANES + lane - block if lane & block else lane for lane in range(_LANES)]
            moved = [_LANES + lane if lane & block else lane + block for lane in range(_LANES)]
            rows = [
                builder.shuffle_vector(
                    rows[n & ~block],
                    rows[n | block],
                    ir.Constant(ir.VectorType(_BITS32, _LANES), moved if n & block else kept),
                )
                for n in range(_LANES)
            ]
        for n, row in enumerate(rows):
            lanes = row if kind == _BITS32 else builder.trunc(row, ir.VectorType(kind, _LANES))
            _put(builder, lanes, at(out, distance, n), kind)
        return context.get_dummy_value()

    return types.void(size, *[types.intp] * 4), generate


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
        pixels = (first, builder.add(first, right), beneath, builder.add(beneath, right))
        four = [_get(builder, pixel, _FLOAT) for pixel in pixels]
        largest, spot = _pooled(builder, four, _get(builder, bias, _FLOAT), _BITS8)
        _put(builder, _rounded(builder, largest), out, _BITS16)
        _put(builder, spot, place, _BITS8)
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
    steps, sums = together(number, half) // (1 + half), number * (1 + half)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, _, places, factors, count, rows, out = values
        nothing = [_all(_FLOAT, 0.0)] * (steps * sums)
        found = _products(builder, half, number, nothing, (places, factors, count), rows)
        for m in range(sums):
            total = _get(builder, _at(builder, out, 64 * m), _FLOAT)
            for part in found[m::sums]:
                total = builder.fadd(total, part)
            _put(builder, total, _at(builder, out, 64 * m), _FLOAT)
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
                _put(builder, total, _at(builder, address, 64 * m), _FLOAT)

        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_BITS64)
        before = [builder.phi(ir.VectorType(_FLOAT, _LANES)) for _ in range((pixels - 1) * sums)]
        first = builder.mul(k, length)
        count = builder.load(builder.inttoptr(_at(builder, counts, k, 8), _BITS64.as_pointer()))
        entries = _at(builder, places, first, 4), _at(builder, factors, first, 2 if half else 4), count
        found = _products(builder, half, v * pixels, before + [_all(_FLOAT, 0.0)] * sums, entries, rows)
        store(found[:sums], _at(builder, out, k, 64 * sums))
        for old, new in zip(before, found[sums:], strict=True):
            old.add_incoming(_all(_FLOAT, 0.0), start)
            old.add_incoming(new, builder.block)
        following = _at(builder, k, 1)
        k.add_incoming(ir.Constant(_BITS64, 0), start)
        k.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, number), loop, end)
        builder.position_at_end(end)
        for n in range(1, pixels):
            store(found[n * sums : (n + 1) * sums], _at(builder, out, _at(builder, k, n), 64 * sums))
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
    steps = len(sums) // (number * pairs)
    float16 = ir.VectorType(_FLOAT, _LANES)
    kind = ir.VectorType(_BFloat(), 2 * _LANES) if half else float16
    if half:
        add = _function(builder, "llvm.x86.avx512bf16.dpbf16ps.512", float16, [float16, kind, kind])
    else:
        add = _function(builder, "llvm.fma.v16f32", float16, [float16] * 3)

    def word(address: Any) -> Any:
        return builder.load(builder.inttoptr(address, _BITS32.as_pointer()), align=2)

    def vector(address: Any) -> Any:
        return builder.load(builder.inttoptr(address, ir.VectorType(_BITS16, 32).as_pointer()), align=2)

    start = builder.block
    loop, end = (builder.append_basic_block(part) for part in ("products", "sums"))
    builder.cbranch(builder.icmp_signed(">", count, ir.Constant(_BITS64, 0)), loop, end)
    builder.position_at_end(loop)
    i = builder.phi(_BITS64)
    before = [builder.phi(float16) for _ in sums]
    after: list[Any] = []
    for step in range(steps):
        first = _at(builder, i, step * pairs)
        begins = [
            _at(builder, rows, builder.zext(word(_at(builder, places, _at(builder, first, n), 4)), _BITS64))
            for n in range(pairs)
        ]
        factor = builder.bitcast(_everywhere(builder, word(_at(builder, factors, first, size))), kind)
        for m in range(number):
            row = [vector(_at(builder, begin, 64 * m)) for begin in begins]
            if half:
                for order in _INTERLEAVED:
                    pair = builder.shuffle_vector(*row, ir.Constant(ir.VectorType(_BITS32, 32), order))
                    after.append(builder.call(add, [before[len(after)], builder.bitcast(pair, kind), factor]))
            else:
                after.append(builder.call(add, [factor, builder.bitcast(row[0], kind), before[len(after)]]))
    for old, new, given in zip(before, after, sums, strict=True):
        old.add_incoming(given, start)
        old.add_incoming(new, loop)
    following = _at(builder, i, steps * pairs)
    i.add_incoming(ir.Constant(_BITS64, 0), start)
    i.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, end)
    builder.position_at_end(end)
    found = [builder.phi(float16) for _ in sums]
    for total, given, new in zip(found, sums, after, strict=True):
        total.add_incoming(given, start)
        total.add_incoming(new, loop)
    return found


def _add(context: Any, count: Any, numbers: Any, out: Any) -> Any:
    """Add float32, so many (a literal), to those of ``out``; what lies behind is neither read nor written."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, *addresses = values
        done = 0
        while done < count.literal_value:
            lanes = min(_LANES, 1 << (count.literal_value - done).bit_length() - 1)
            pointer = ir.VectorType(_FLOAT, lanes).as_pointer()
            numbers, out = (
                builder.inttoptr(_at(builder, address, 4 * done), pointer) for address in addresses
            )
            total = builder.fadd(builder.load(numbers, align=4), builder.load(out, align=4))
            builder.store(total, out, align=4)
            done += lanes
        return context.get_dummy_value()

    return types.void(count, *[types.intp] * 2), generate


def together(vectors: int, half: bool) -> int:
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

copy: Any = intrinsic(_copy)
round16: Any = intrinsic(_round16)
pool16: Any = intrinsic(_pool16)
transpose16: Any = intrinsic(prefer_literal=True)(_transpose16)
pair16: Any = intrinsic(_pair16)
send16: Any = intrinsic(_send16)
add_products: Any = intrinsic(prefer_literal=True)(_add_products)
slide_products: Any = intrinsic(prefer_literal=True)(_slide_products)
add: Any = intrinsic(prefer_literal=True)(_add)
