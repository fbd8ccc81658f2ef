"""Instructions on sixteen numbers at a time: copying, rounding, lists for ``add_products``."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from fedpart.kernels.convolution.code import (
    BITS8,
    BITS16,
    BITS16S,
    BITS32,
    BITS64,
    BYTES,
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
    """Write sixteen rows of sixteen words column by column, of each the lower ``size`` bytes, 1, 2 or 4.

    Rows begin at ``source`` and lie ``apart``; columns begin at ``out``, ``distance`` from each other.
    """
    rows = [code.lanes(code.at(source, apart, n), BITS32) for n in range(LANES)]
    for n, column in enumerate(code.transposed(rows)):
        lanes = column if size == 4 else code.trunc(column, ir.VectorType(ir.IntType(8 * size), LANES))
        code.put(lanes, code.at(out, distance, n))


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


def _list(
    code: Code, halves: int, kept: Any, lanes: tuple[Any, Any], lists: tuple[Any, Any], count: Any
) -> None:
    """Put those of sixteen entries that are ``kept`` at the end of a list, and zeros behind them.

    ``lanes`` are places, and bits of factors, all of 32 bits; ``lists`` the addresses of both, factors having
    16 bits if ``halves`` is 1; ``count`` the address of the entries' number."""
    n = code.number(count, BITS64)
    for entries, address, size in zip(lanes, lists, (4, 4 >> halves), strict=True):
        entries = code.llvm("x86.avx512.mask.compress.v16i32", WORDS, entries, constant(BITS32, 0), kept)
        code.put(entries if size == 4 else code.trunc(entries, BITS16S), code.at(address, n, size))
    more = code.ctpop(code.bitcast(kept, BITS16))
    code.store(code.add(n, code.zext(more, BITS64)), code.inttoptr(count, BITS64.as_pointer()))


def _wide(code: Code, address: Any, kind: Any) -> Any:
    """Numbers without a sign as numbers of 32 bits."""
    lanes = code.lanes(address, kind)
    return lanes if kind == BITS32 else code.zext(lanes, WORDS)


@instruction(literals=1)
def list_by_filter(
    code: Code, halves: int, gradient: Any, where: Any, apart: Any, cells: Any, pixels: Any, places: Any,
    factors: Any, length: Any, counts: Any, totals: Any,
) -> None:  # fmt: skip
    """List the pixels that pooling has kept of sixteen cells, for each of sixteen filters.

    ``gradient`` and ``where`` (of :meth:`.Pooling.pool`) are of the first cell, the next cell's ``apart``
    numbers away; ``cells`` the place of each, int32, or -1 behind the last one; ``pixels`` what is to be
    added for each of the four, int32, with twelve more behind. ``places`` and ``factors`` are lists as in
    ``add_products``, ``length`` entries apart, to each of which sixteen are written; ``counts`` says how many
    count, int64. The factors are added to ``totals``, sixteen float32 for each filter."""

    def by_filter(address: Any, kind: Any) -> list[Any]:
        addresses = [code.at(address, apart, BYTES[kind] * n) for n in range(LANES)]
        return code.transposed([_wide(code, place, kind) for place in addresses])

    begins, moved = code.lanes(cells, BITS32), code.lanes(pixels, BITS32)
    there = code.icmp_signed(">=", begins, constant(BITS32, 0))
    spots_of, numbers_of = by_filter(where, BITS8), by_filter(gradient, BITS16 if halves else BITS32)
    for n, (spots, numbers) in enumerate(zip(spots_of, numbers_of, strict=True)):
        kept = code.and_(there, code.icmp_unsigned("<", spots, constant(BITS32, int(NOWHERE))))
        found = code.add(begins, code.llvm("x86.avx512.permvar.si.512", WORDS, moved, spots))
        lists = code.at(places, length, 4 * n), code.at(factors, length, (4 >> halves) * n)
        _list(code, halves, kept, (found, numbers), lists, code.at(counts, 8 * n))
        numbers = code.shl(numbers, constant(BITS32, 16)) if halves else numbers
        numbers = code.bitcast(code.select(kept, numbers, constant(BITS32, 0)), FLOATS)
        total = code.at(totals, 64 * n)
        code.put(code.fadd(code.lanes(total, FLOAT), numbers), total)


@instruction(literals=1)
def list_by_pixel(
    code: Code, halves: int, gradient: Any, where: Any, filters: Any, places: Any, factors: Any,
    length: Any, counts: Any, down: Any,
) -> None:  # fmt: skip
    """List sixteen filters of a cell for each of its four pixels of which pooling has kept them.

    As in ``list_by_filter``; ``filters`` are int32, the place of each, or -1 behind the last one. Lists are
    of the upper left pixel; that of the right one is the next, that beneath is ``down`` lists away.
    """
    begins = code.lanes(filters, BITS32)
    numbers = _wide(code, gradient, BITS16 if halves else BITS32)
    spots, there = code.lanes(where, BITS8), code.icmp_signed(">=", begins, constant(BITS32, 0))
    for n in range(4):
        kept = code.and_(there, code.icmp_unsigned("==", spots, constant(BITS8, n)))
        pixel = code.at(ir.Constant(BITS64, n % 2), down, n // 2)
        first = code.mul(pixel, length)
        lists = code.at(places, first, 4), code.at(factors, first, 4 >> halves)
        _list(code, halves, kept, (begins, numbers), lists, code.at(counts, pixel, 8))
