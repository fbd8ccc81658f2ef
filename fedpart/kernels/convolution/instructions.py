"""Instructions on sixteen numbers at a time: copying, rounding, pooling and sending gradients back."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from fedpart.kernels.convolution.code import (
    BITS8,
    BITS16,
    BITS32,
    FLOAT,
    FLOATS,
    LANES,
    WORDS,
    Code,
    constant,
    instruction,
)
from fedpart.kernels.pooling import NOWHERE


@instruction()
def copy(code: Code, source: Any, out: Any, size: Any) -> None:
    """Copy so many bytes."""
    source, out = (code.inttoptr(address, BITS8.as_pointer()) for address in (source, out))
    cgutils.raw_memcpy(code, out, source, size, 1)  # type: ignore[no-untyped-call]


@instruction()
def round16(code: Code, lanes: Any, out: Any) -> None:
    """Round float32 ``lanes`` to bfloat16, into ``out``."""
    code.put(code.rounded(code.lanes(lanes, FLOAT)), out)


@instruction(literals=1)
def transpose16(code: Code, size: int, source: Any, apart: Any, out: Any, distance: Any) -> None:
    """Write sixteen rows of sixteen words column by column, or the lower parts of these words.

    Args:
        size: bytes of a word that are written, 1, 2 or 4.
        source, apart: of the first row, and from a row to the next.
        out, distance: of the first column, and from a column to the next, written.
    """
    rows = [code.lanes(code.at(source, apart, n), BITS32) for n in range(LANES)]
    for n, column in enumerate(code.transposed(rows)):
        lanes = column if size == 4 else code.trunc(column, ir.VectorType(ir.IntType(8 * size), LANES))
        code.put(lanes, code.at(out, distance, n))


@instruction()
def pool16(code: Code, first: Any, right: Any, down: Any, bias: Any, out: Any, place: Any) -> None:
    """Pool and rectify sixteen channels of four pixels.

    Args:
        first: float32 of the upper left pixel, the others being ``right`` and ``down`` bytes away.
        bias: float32, added to all four.
        out: bfloat16, written: the maximum, or 0 if it is negative; what is not a number stays so.
        place: bytes, written: which of the four was the first maximum, row by row, or NOWHERE.
    """
    beneath = code.add(first, down)
    pixels = (first, code.add(first, right), beneath, code.add(beneath, right))
    four = [code.lanes(pixel, FLOAT) for pixel in pixels]
    largest, spot = code.pooled(four, code.lanes(bias, FLOAT), BITS8)
    code.put(code.rounded(largest), out)
    code.put(spot, place)


@instruction()
def pair16(code: Code, gradient: Any, place: Any, upper: Any, lower: Any, total: Any) -> None:
    """Send sixteen channels' gradients back to the four pixels that were pooled, side by side in pairs.

    Args:
        gradient: bfloat16, of the pooled pixel.
        place: of ``pool16``.
        upper, lower: pairs of bfloat16, written: for each channel the left pixel, then the right one.
        total: float32, to which gradients that reach a pixel are added.
    """
    zero = constant(BITS32, 0)
    left = code.zext(code.lanes(gradient, BITS16), WORDS)
    right = code.shl(left, constant(BITS32, 16))  # as a float32, the gradient itself
    spot = code.lanes(place, BITS8)

    def where(comparison: str, n: int, lanes: Any, others: Any) -> Any:
        return code.select(code.icmp_unsigned(comparison, spot, constant(BITS8, n)), lanes, others)

    code.put(where("==", 0, left, where("==", 1, right, zero)), upper)
    code.put(where("==", 2, left, where("==", 3, right, zero)), lower)
    passed = code.bitcast(where("<", int(NOWHERE), right, zero), FLOATS)
    code.put(code.fadd(code.lanes(total, FLOAT), passed), total)


@instruction()
def send16(code: Code, gradient: Any, place: Any, number: Any, out: Any) -> None:
    """Send sixteen channels' gradients back to one of the four pixels that were pooled.

    Args:
        gradient: bfloat16, of the pooled pixel.
        place: of ``pool16``.
        number: which of the four it is, not an address.
        out: bfloat16 of that pixel, written: its gradients, or 0 where another was the maximum.
    """
    lanes, spot = code.lanes(gradient, BITS16), code.lanes(place, BITS8)
    here = code.icmp_unsigned("==", spot, code.everywhere(code.trunc(number, BITS8)))
    code.put(code.select(here, lanes, constant(BITS16, 0)), out)


@instruction(literals=1)
def add(code: Code, count: int, numbers: Any, out: Any) -> None:
    """Add float32, so many, to those of ``out``; what lies behind is neither read nor written."""
    done = 0
    while done < count:
        lanes = min(LANES, 1 << (count - done).bit_length() - 1)
        kind = ir.VectorType(FLOAT, lanes)
        terms = [code.number(code.at(address, 4 * done), kind, 4) for address in (numbers, out)]
        code.put(code.fadd(*terms), code.at(out, 4 * done))
        done += lanes
