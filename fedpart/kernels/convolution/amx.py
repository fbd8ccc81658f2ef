"""Instructions that numba has no names for: products of matrices in tiles (AMX of x86).

There are eight tiles of 16 rows, or fewer, of 64 bytes. Tiles 0 to 3 are sums, in float32, of the products in
bfloat16 of tiles 4 and 5 with tiles 6 and 7. Addresses and distances are in bytes. Kernels that use tiles run
where :func:`available` says so, and leave them configured as they found them, for oneDNN.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from fedpart.kernels.convolution.code import BITS8, BITS64, Code, features, instruction

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64: arch_prctl(ARCH_REQ_XCOMP_PERM, ...)


@cache
def available() -> bool:
    """Whether what numba compiles may multiply tiles of bfloat16 in this process, for which it asks Linux."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    if not {"amx-tile", "amx-bf16"} <= features():
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)


def shapes(rows: int) -> Any:
    """What ``configure`` reads, ``[64]`` bytes: sums and left factors have so many rows, at most 16."""
    found = np.zeros(64, np.uint8)
    found[0] = 1  # the palette of eight tiles
    found[16:32].view(np.uint16)[:] = 64  # bytes in a row
    found[48:54], found[54:56] = rows, 16
    return found


def _tiles(code: Code, name: str, *tiles: int, place: Any = None, apart: Any = None) -> None:
    """``llvm.x86.NAME`` of given tiles and, as far as it has them, an address and a distance between rows."""
    operands = [ir.Constant(BITS8, tile) for tile in tiles]
    if place is not None:
        operands.append(code.inttoptr(place, BITS8.as_pointer()))
    code.llvm(f"x86.{name}", ir.VoidType(), *operands, *([] if apart is None else [apart]))


@instruction()
def configure(code: Code, shape: Any) -> None:
    """Tiles are of the shapes that are written there."""
    _tiles(code, "ldtilecfg", place=shape)


@instruction()
def configuration(code: Code, shape: Any) -> None:
    """Write there what shapes they are of."""
    _tiles(code, "sttilecfg", place=shape)


@instruction()
def zero(code: Code) -> None:
    """Sums are 0."""
    for tile in range(4):
        _tiles(code, "tilezero", tile)


def _move_sums(code: Code, name: str, sums: Any, down: Any, apart: Any) -> None:
    below = code.add(sums, down)
    for tile, place in enumerate((sums, code.at(sums, 64), below, code.at(below, 64))):
        _tiles(code, name, tile, place=place, apart=apart)


@instruction()
def load(code: Code, sums: Any, down: Any, apart: Any) -> None:
    """Sums: two tiles side by side, and two that are ``down`` bytes away; rows are ``apart``."""
    _move_sums(code, "tileloadd64", sums, down, apart)


@instruction()
def store(code: Code, sums: Any, down: Any, apart: Any) -> None:
    """As ``load``."""
    _move_sums(code, "tilestored64", sums, down, apart)


@instruction()
def add(code: Code, left: Any, other: Any, apart: Any, right: Any) -> None:
    """Add the products of two left factors, whose rows are ``apart``, with 32 columns."""
    row = ir.Constant(BITS64, 128)
    for tile, place, distance in (
        (4, left, apart),
        (5, other, apart),
        (6, right, row),
        (7, code.at(right, 64), row),
    ):
        _tiles(code, "tileloadd64", tile, place=place, apart=distance)
    for total, factors in enumerate(((4, 6), (4, 7), (5, 6), (5, 7))):
        _tiles(code, "tdpbf16ps", total, *factors)
