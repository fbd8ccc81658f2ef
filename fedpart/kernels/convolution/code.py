"""How instructions are written that numba's own loops do not come down to: on sixteen lanes of a vector.

Addresses and distances are in bytes, and may be any."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from fedpart.kernels.compiling import Kernel
from fedpart.kernels.pooling import NOWHERE

BITS8, BITS16, BITS32, BITS64 = (ir.IntType(size) for size in (8, 16, 32, 64))
FLOAT = ir.FloatType()
BYTES = {BITS8: 1, BITS16: 2, BITS32: 4, FLOAT: 4}
LANES = 16
BITS16S, FLOATS, WORDS = (ir.VectorType(kind, LANES) for kind in (BITS16, FLOAT, BITS32))
_MIXED = [
    ir.Constant(WORDS, [n for lane in range(8) for n in (first + lane, first + lane + 16)])
    for first in (0, 8)
]
"""Pairs of a lane of each of two vectors, of either half of them. Four times so, sixteen rows are columns."""


@cache
def features() -> frozenset[str]:
    """Of the processor that numba compiles for, in LLVM's words."""
    listed = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return frozenset(name[1:] for name in listed if name.startswith("+"))


def instruction(literals: int = 0) -> Callable[[Kernel], Any]:
    """Decorator: what a function writes to :class:`Code` becomes one instruction, called like a function.

    Its operands are so many ``literals``, numbers that stand in the kernel, then what is known when it runs,
    of 64 bits: addresses, distances, counts."""

    def decorate(write: Kernel) -> Any:
        @wraps(write)
        def typed(context: Any, *operands: Any) -> Any:
            known = operands[:literals]
            if not all(isinstance(operand, types.IntegerLiteral) for operand in known):
                return None

            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                write(Code(builder), *(operand.literal_value for operand in known), *values[literals:])
                return context.get_dummy_value()

            return types.void(*known, *[types.intp] * (len(operands) - literals)), generate

        return intrinsic(prefer_literal=literals > 0)(typed)

    return decorate


def constant(kind: Any, value: float) -> Any:
    """A vector of that number only, which is known already."""
    return ir.Constant(ir.VectorType(kind, LANES), [value] * LANES)


class Code:
    """llvmlite's builder of instructions, and what takes several of them."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def lanes(self, address: Any, kind: Any) -> Any:
        """Lanes of that kind that lie from ``address`` on."""
        return self.number(address, ir.VectorType(kind, LANES), BYTES[kind])

    def number(self, address: Any, kind: Any, align: int = 8) -> Any:
        """What lies there, at a multiple of ``align``."""
        return self.load(self.inttoptr(address, kind.as_pointer()), align=align)

    def word(self, address: Any) -> Any:
        """The word that lies there."""
        return self.number(address, BITS32, 2)

    def put(self, lanes: Any, address: Any) -> None:
        """Write lanes there."""
        self.store(lanes, self.inttoptr(address, lanes.type.as_pointer()), align=BYTES[lanes.type.element])

    def at(self, address: Any, distance: Any, times: int = 1) -> Any:
        """An address so many times a distance farther."""
        if isinstance(distance, int):
            return self.add(address, ir.Constant(BITS64, distance * times))
        return self.add(address, self.mul(distance, ir.Constant(BITS64, times)))

    def llvm(self, name: str, result: Any, *operands: Any) -> Any:
        """Call one of LLVM's own functions."""
        function = self.module.globals.get(f"llvm.{name}")
        if function is None:
            kind = ir.FunctionType(result, [operand.type for operand in operands])
            function = ir.Function(self.module, kind, f"llvm.{name}")
        return self.call(function, operands)

    def everywhere(self, number: Any) -> Any:
        """A vector of that number only."""
        first = self.insert_element(constant(number.type, 0), number, ir.Constant(BITS32, 0))
        return self.shuffle_vector(first, first, constant(BITS32, 0))

    def rounded(self, lanes: Any) -> Any:
        """The bits of float32 ``lanes`` in bfloat16: the nearest, of two the even one."""
        bits = self.bitcast(lanes, WORDS)
        odd = self.and_(self.lshr(bits, constant(BITS32, 16)), constant(BITS32, 1))
        bits = self.lshr(self.add(self.add(bits, constant(BITS32, 0x7FFF)), odd), constant(BITS32, 16))
        no_number = self.fcmp_unordered("uno", lanes, lanes)
        return self.trunc(self.select(no_number, constant(BITS32, 0x7FC0), bits), BITS16S)

    def pooled(self, four: list[Any], bias: Any) -> tuple[Any, Any]:
        """The maximum of float32 lanes of four pixels, biased, rectified; which was the first, or NOWHERE."""
        largest, spot = four[0], constant(BITS32, 0)
        for n, lanes in enumerate(four[1:], start=1):
            no_number = self.fcmp_unordered("uno", lanes, lanes)
            larger = self.or_(self.fcmp_ordered(">", lanes, largest), no_number)
            largest = self.select(larger, lanes, largest)
            spot = self.select(larger, constant(BITS32, n), spot)
        largest = self.fadd(largest, bias)
        nowhere = self.fcmp_ordered("<=", largest, constant(FLOAT, 0.0))
        zero, none = constant(FLOAT, 0.0), constant(BITS32, int(NOWHERE))
        return self.select(nowhere, zero, largest), self.select(nowhere, none, spot)

    def transposed(self, rows: list[Any]) -> list[Any]:
        """Columns of sixteen vectors of words."""
        for _ in range(4):
            pairs = zip(rows[:8], rows[8:], strict=True)
            rows = [self.shuffle_vector(*pair, order) for pair in pairs for order in _MIXED]
        return rows

    def loop(self, count: Any, body: Any, *carried: Any, step: int = 1) -> list[Any]:
        """Run ``body`` for 0, ``step``, 2 * ``step``, ... below ``count``; the ``carried`` values after that.

        It takes that number and the carried values, and returns these for the next time."""
        zero = ir.Constant(BITS64, 0)
        before, loop, end = self.block, self.append_basic_block("loop"), self.append_basic_block("end")
        self.cbranch(self.icmp_signed(">", count, zero), loop, end)
        self.position_at_end(loop)
        time, *values = (self.phi(start.type) for start in (zero, *carried))
        found = body(time, *values)
        following, last = self.at(time, step), self.block
        self.cbranch(self.icmp_signed("<", following, count), loop, end)
        self.position_at_end(end)
        after = [self.phi(start.type) for start in carried]
        for phi, start, new in zip(
            [time, *values, *after], [zero, *carried, *carried], [following, *found, *found], strict=True
        ):
            phi.add_incoming(start, before)
            phi.add_incoming(new, last)
        return after
