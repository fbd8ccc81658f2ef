"""Sums of products that stay in registers until they are complete, sixteen lanes of a vector at a time."""

from typing import Any

from llvmlite import ir

from fedpart.kernels.convolution.code import (
    BITS16,
    BITS32,
    BITS64,
    FLOAT,
    FLOATS,
    LANES,
    WORDS,
    Code,
    constant,
    instruction,
)

MOST_FILTERS = 6
"""Filters of ``pool_products``: four sums of each, four pixels and a weight fill 29 of 32 registers."""
_INTERLEAVED = [
    [8 * lane + 4 * half + n + other for lane in range(4) for n in range(4) for other in (0, 32)]
    for half in range(2)
]
"""Of two vectors in bfloat16: pairs of a number of each, of either half of every 16 bytes, as the processor
interleaves them at once."""
ORDER = [8 * lane + 4 * half + n for half in range(2) for lane in range(4) for n in range(4)]
"""Which number of 32 ``add_products`` has added up in each place."""


class _BFloat(ir.Type):  # type: ignore[misc]
    """bfloat16, of which llvmlite does not know; LLVM does."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def _everywhere(code: Code, address: Any) -> Any:
    """The factor, or the pair of factors in bfloat16, that lies there, in all lanes."""
    return code.everywhere(code.word(address))


def _vector(code: Code, address: Any) -> Any:
    """Sixteen such factors that lie there."""
    return code.number(address, ir.VectorType(BITS16, 2 * LANES), 2)


def _multiplied(code: Code, halves: int, total: Any, left: Any, right: Any) -> Any:
    """``total + left * right``; factors are the bits of some type, and of a pair both products are added."""
    kind = ir.VectorType(_BFloat(), 2 * LANES) if halves else FLOATS
    left, right = (code.bitcast(factor, kind) for factor in (left, right))
    if halves:
        return code.llvm("x86.avx512bf16.dpbf16ps.512", FLOATS, total, left, right)
    return code.llvm("fma.v16f32", FLOATS, left, right, total)


@instruction(literals=2)
def pool_products(
    code: Code, filters: int, halves: int, start: Any, right: Any, down: Any, rows: Any, steps: Any,
    weight: Any, apart: Any, bias: Any, out: Any, where: Any,
) -> None:  # fmt: skip
    """Convolve four pixels of sixteen images with some filters, pool and rectify them.

    The upper left pixel's kernel covers words of sixteen images from ``start`` on, its rows ``down`` bytes
    apart; the other pixels' are ``right`` and ``down`` bytes away. Words are float32, or pairs of bfloat16 if
    ``halves`` is 1; ``steps`` of them are in each of the kernel's ``rows``, which in ``weight``, by row, step
    and filter, are ``apart``. ``out`` and ``where`` get a word of each filter and image: the number (bfloat16
    in the lower half), and which of the four was the first maximum, row by row, or NOWHERE."""

    def step(_: Any, pixels: Any, kernel: Any, *sums: Any) -> list[Any]:
        lower = code.add(pixels, down)
        four = [pixels, code.add(pixels, right), lower, code.add(lower, right)]
        lanes = [_vector(code, address) for address in four]
        added = []
        for n in range(filters):
            weight = _everywhere(code, code.at(kernel, 4 * n))
            added += [
                _multiplied(code, halves, sums[4 * n + m], pixel, weight) for m, pixel in enumerate(lanes)
            ]
        return [code.at(pixels, 4 * LANES), code.at(kernel, 4 * filters), *added]

    def row(_: Any, pixels: Any, kernel: Any, *sums: Any) -> list[Any]:
        _, _, *found = code.loop(steps, step, pixels, kernel, *sums)
        return [code.add(pixels, down), code.add(kernel, apart), *found]

    zeros = [constant(FLOAT, 0.0)] * (4 * filters)
    _, _, *sums = code.loop(rows, row, start, weight, *zeros)
    for n in range(filters):
        added = code.bitcast(code.everywhere(code.word(code.at(bias, 4 * n))), FLOATS)
        largest, spot = code.pooled(sums[4 * n : 4 * n + 4], added)
        bits = code.zext(code.rounded(largest), WORDS) if halves else code.bitcast(largest, WORDS)
        code.put(bits, code.at(out, 4 * LANES * n))
        code.put(spot, code.at(where, 4 * LANES * n))


@instruction(literals=2)
def add_products(
    code: Code, vectors: int, halves: int, places: Any, factors: Any, count: Any, rows: Any, out: Any
) -> None:
    """Add ``sum_i factors[i] * row_i`` to ``out``, with all sums in registers.

    A row has ``vectors`` of 64 bytes, in bfloat16 if ``halves`` is 1; row i begins ``places[i]`` bytes,
    int32, behind ``rows``. There is a multiple of :func:`products_at_once` of factors; those after ``count``
    are 0. ``out`` is float32, as many as there are numbers in a row; of bfloat16 rows in the order of
    ``ORDER``."""
    steps, sums = products_at_once(vectors, halves) // (1 + halves), vectors * (1 + halves)
    nothing = [constant(FLOAT, 0.0)] * (steps * sums)
    found = _products(code, halves, vectors, nothing, (places, factors, count), rows)
    for m in range(sums):
        total = code.lanes(code.at(out, 64 * m), FLOAT)
        for part in found[m::sums]:
            total = code.fadd(total, part)
        code.put(total, code.at(out, 64 * m))


@instruction(literals=3)
def slide_products(
    code: Code, vectors: int, size: int, halves: int, places: Any, factors: Any, length: Any, counts: Any,
    number: Any, rows: Any, out: Any,
) -> None:  # fmt: skip
    """Sums ``sum_i factors[i] * row_i`` of lists whose rows begin at a pixel, at the next one, and so on.

    As in ``add_products``, but ``vectors`` are of a pixel, of which a row has ``size``. Lists are ``length``
    entries apart, ``number`` of them, with so many entries as ``counts`` has, int64. ``out`` is float32,
    ``number + size - 1`` pixels, written, each when its sum is complete."""
    sums = vectors * (1 + halves)
    zeros = [constant(FLOAT, 0.0)] * sums

    def store(lanes: list[Any], pixel: Any) -> None:
        address = code.at(out, pixel, 64 * sums)
        for m, total in enumerate(lanes):
            code.put(total, code.at(address, 64 * m))

    def complete(pixel: Any, *before: Any) -> list[Any]:
        first, count = code.mul(pixel, length), code.number(code.at(counts, pixel, 8), BITS64)
        entries = code.at(places, first, 4), code.at(factors, first, 4 >> halves), count
        found = _products(code, halves, vectors * size, [*before, *zeros], entries, rows)
        store(found[:sums], pixel)
        return found[sums:]

    rest = code.loop(number, complete, *zeros * (size - 1))
    for n in range(size - 1):
        store(rest[n * sums : (n + 1) * sums], code.at(number, n))


def _products(
    code: Code, halves: int, vectors: int, sums: list[Any], entries: tuple[Any, Any, Any], rows: Any
) -> list[Any]:
    """Code that adds products to vectors of ``sums``, in turn if there are more; the sums at its end."""
    places, factors, count = entries
    pairs = 1 + halves
    steps = len(sums) // (vectors * pairs)

    def add(number: Any, *before: Any) -> list[Any]:
        after: list[Any] = []
        for step in range(steps):
            first = code.at(number, step * pairs)
            begins = [
                code.at(rows, code.zext(code.word(code.at(places, entry, 4)), BITS64))
                for entry in (code.at(first, n) for n in range(pairs))
            ]
            factor = _everywhere(code, code.at(factors, first, 4 >> halves))
            for m in range(vectors):
                row = [_vector(code, code.at(begin, 64 * m)) for begin in begins]
                if halves:
                    orders = (ir.Constant(ir.VectorType(BITS32, 32), order) for order in _INTERLEAVED)
                    row = [code.shuffle_vector(*row, order) for order in orders]
                for lanes in row:
                    after.append(_multiplied(code, halves, before[len(after)], lanes, factor))
        return after

    return code.loop(count, add, *sums, step=steps * pairs)


def products_at_once(vectors: int, halves: int) -> int:
    """How many products ``add_products`` adds at a time: enough that none waits for the one before."""
    return max(1, 4 // vectors) * (1 + halves)
