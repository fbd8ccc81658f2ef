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

from fedpart.kernels.convolution.pooling import NOWHERE

BITS8, BITS16, BITS32, BITS64 = (ir.IntType(size) for size in (8, 16, 32, 64))
FLOAT = ir.FloatType()
BYTES = {BITS8: 1, BITS16: 2, BITS32: 4, FLOAT: 4}
LANES = 16
FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(BITS32, LANES)


def features() -> set[str]:
    """Of the processor that numba compiles for, in LLVM's words; none where it compiles nothing."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return set()
    listed = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return {name[1:] for name in listed if name.startswith("+")}


def typed(operands: int, generate: Any) -> Any:
    """What numba asks of an intrinsic: types of its operands, all addresses or distances, and its code."""
    return types.void(*[types.intp] * operands), generate


def get(builder: Any, address: Any, kind: Any) -> Any:
    """Lanes that lie from ``address`` on, wherever that is."""
    pointer = builder.inttoptr(address, ir.VectorType(kind, LANES).as_pointer())
    return builder.load(pointer, align=BYTES[kind])


def put(builder: Any, lanes: Any, address: Any, kind: Any) -> None:
    """Write lanes there."""
    pointer = builder.inttoptr(address, ir.VectorType(kind, LANES).as_pointer())
    builder.store(lanes, pointer, align=BYTES[kind])


def word(builder: Any, address: Any) -> Any:
    """The word that lies there."""
    return builder.load(builder.inttoptr(address, BITS32.as_pointer()), align=2)


def at(builder: Any, address: Any, distance: Any, times: int = 1) -> Any:
    """An address so many times a distance farther."""
    if isinstance(distance, int):
        return builder.add(address, ir.Constant(BITS64, distance * times))
    return builder.add(address, builder.mul(distance, ir.Constant(BITS64, times)))


def constant(kind: Any, value: float) -> Any:
    """A vector of that number only, which is known already."""
    return ir.Constant(ir.VectorType(kind, LANES), [value] * LANES)


def function(builder: Any, name: str, result: Any, operands: list[Any]) -> Any:
    """One of LLVM's own."""
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, operands), name)


def everywhere(builder: Any, number: Any) -> Any:
    """A vector of that number only."""
    first = builder.insert_element(constant(number.type, 0), number, ir.Constant(BITS32, 0))
    return builder.shuffle_vector(first, first, constant(BITS32, 0))


def rounded(builder: Any, lanes: Any) -> Any:
    """The bits of float32 ``lanes`` in bfloat16: the nearest, of two the even one."""
    bits = builder.bitcast(lanes, WORDS)
    odd = builder.and_(builder.lshr(bits, constant(BITS32, 16)), constant(BITS32, 1))
    bits = builder.lshr(builder.add(builder.add(bits, constant(BITS32, 0x7FFF)), odd), constant(BITS32, 16))
    no_number = builder.fcmp_unordered("uno", lanes, lanes)
    bits = builder.select(no_number, constant(BITS32, 0x7FC0), bits)
    return builder.trunc(bits, ir.VectorType(BITS16, LANES))


def _copy(context: Any, source: Any, out: Any, size: Any) -> Any:
    """Copy so many bytes."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, out, size = values
        source, out = (builder.inttoptr(address, BITS8.as_pointer()) for address in (source, out))
        cgutils.raw_memcpy(builder, out, source, size, 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return typed(3, generate)


def _round16(context: Any, lanes: Any, out: Any) -> Any:
    """Round float32 ``lanes`` to bfloat16, into ``out``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        put(builder, rounded(builder, get(builder, values[0], FLOAT)), values[1], BITS16)
        return context.get_dummy_value()

    return typed(2, generate)


def pooled(builder: Any, four: list[Any], bias: Any, kind: Any) -> tuple[Any, Any]:
    """The maximum of float32 lanes of four pixels, biased and rectified; which was the first, or NOWHERE."""
    largest, spot = four[0], constant(kind, 0)
    for n, lanes in enumerate(four[1:], start=1):
        no_number = builder.fcmp_unordered("uno", lanes, lanes)
        larger = builder.or_(builder.fcmp_ordered(">", lanes, largest), no_number)
        largest = builder.select(larger, lanes, largest)
        spot = builder.select(larger, constant(kind, n), spot)
    largest = builder.fadd(largest, bias)
    nowhere = builder.fcmp_ordered("<=", largest, constant(FLOAT, 0.0))
    zero, none = constant(FLOAT, 0.0), constant(kind, int(NOWHERE))
    return builder.select(nowhere, zero, largest), builder.select(nowhere, none, spot)


_MIXED = [
    ir.Constant(WORDS, [n for lane in range(8) for n in (first + lane, first + lane + 16)])
    for first in (0, 8)
]
"""Pairs of a lane of each of two vectors, of either half of them. Four times so, sixteen rows are columns."""


def transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Columns of sixteen vectors of words."""
    for _ in range(4):
        pairs = zip(rows[:8], rows[8:], strict=True)
        rows = [builder.shuffle_vector(*pair, order) for pair in pairs for order in _MIXED]
    return rows


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

        rows = [get(builder, at(builder, source, apart, n), BITS32) for n in range(LANES)]
        for n, column in enumerate(transposed(builder, rows)):
            lanes = column if kind == BITS32 else builder.trunc(column, ir.VectorType(kind, LANES))
            put(builder, lanes, at(builder, out, distance, n), kind)
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
        four = [get(builder, pixel, FLOAT) for pixel in pixels]
        largest, spot = pooled(builder, four, get(builder, bias, FLOAT), BITS8)
        put(builder, rounded(builder, largest), out, BITS16)
        put(builder, spot, place, BITS8)
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
        zero = constant(BITS32, 0)
        left = builder.zext(get(builder, gradient, BITS16), WORDS)
        right = builder.shl(left, constant(BITS32, 16))  # as a float32, the gradient itself
        spot = get(builder, place, BITS8)

        def where(comparison: str, n: int, lanes: Any, others: Any) -> Any:
            return builder.select(builder.icmp_unsigned(comparison, spot, constant(BITS8, n)), lanes, others)

        put(builder, where("==", 0, left, where("==", 1, right, zero)), upper, BITS32)
        put(builder, where("==", 2, left, where("==", 3, right, zero)), lower, BITS32)
        passed = builder.bitcast(where("<", int(NOWHERE), right, zero), FLOATS)
        put(builder, builder.fadd(get(builder, total, FLOAT), passed), total, FLOAT)
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
        lanes, spot = get(builder, gradient, BITS16), get(builder, place, BITS8)
        splat = builder.insert_element(
            constant(BITS8, 0), builder.trunc(number, BITS8), ir.Constant(BITS32, 0)
        )
        number = builder.shuffle_vector(splat, splat, constant(BITS32, 0))
        here = builder.icmp_unsigned("==", spot, number)
        put(builder, builder.select(here, lanes, constant(BITS16, 0)), out, BITS16)
        return context.get_dummy_value()

    return typed(4, generate)


def _add(context: Any, count: Any, numbers: Any, out: Any) -> Any:
    """Add float32, so many (a literal), to those of ``out``; what lies behind is neither read nor written."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, *addresses = values
        done = 0
        while done < count.literal_value:
            lanes = min(LANES, 1 << (count.literal_value - done).bit_length() - 1)
            pointer = ir.VectorType(FLOAT, lanes).as_pointer()
            numbers, out = (
                builder.inttoptr(at(builder, address, 4 * done), pointer) for address in addresses
            )
            total = builder.fadd(builder.load(numbers, align=4), builder.load(out, align=4))
            builder.store(total, out, align=4)
            done += lanes
        return context.get_dummy_value()

    return types.void(count, *[types.intp] * 2), generate


copy: Any = intrinsic(_copy)
round16: Any = intrinsic(_round16)
pool16: Any = intrinsic(_pool16)
transpose16: Any = intrinsic(prefer_literal=True)(_transpose16)
pair16: Any = intrinsic(_pair16)
send16: Any = intrinsic(_send16)
add: Any = intrinsic(prefer_literal=True)(_add)
