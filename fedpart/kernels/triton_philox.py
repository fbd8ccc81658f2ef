"""What numpy's Philox4x64-10 gives, on a GPU; Triton comes with torch on Linux."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # lanes of a program; each makes a block of four words


@triton.jit  # type: ignore[untyped-decorator]
def _philox(out, keys, start, width, blocks, total, PARTS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Lane i makes block ``i % blocks`` of row ``i // blocks``; ``PARTS``: numbers in a word."""
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES).to(tl.int64)
    live = lane < total
    row = lane // blocks
    stream = keys + row * 6
    first = tl.load(stream + 5, mask=live, other=0) * width  # the row's first number in its stream
    block = first // (4 * PARTS) + lane % blocks
    k0 = tl.load(stream, mask=live, other=0).to(tl.uint64, bitcast=True)
    k1 = tl.load(stream + 1, mask=live, other=0).to(tl.uint64, bitcast=True)
    a = (start + block + 1).to(tl.uint64, bitcast=True)
    b = tl.load(stream + 2, mask=live, other=0).to(tl.uint64, bitcast=True)
    c = tl.load(stream + 3, mask=live, other=0).to(tl.uint64, bitcast=True)
    d = tl.load(stream + 4, mask=live, other=0).to(tl.uint64, bitcast=True)
    m0 = tl.full([LANES], 0xD2E7470EE14C6C93, tl.uint64)
    m1 = tl.full([LANES], 0xCA5A826395121157, tl.uint64)
    w0 = tl.full([LANES], 0x9E3779B97F4A7C15, tl.uint64)
    w1 = tl.full([LANES], 0xBB67AE8584CAA73B, tl.uint64)
    for _ in tl.static_range(10):
        upper = tl.umulhi(m0, a)
        upper_c = tl.umulhi(m1, c)
        b, d, a, c = m1 * c, m0 * a, upper_c ^ b ^ k0, upper ^ d ^ k1
        k0 = k0 + w0
        k1 = k1 + w1
    place = block * (4 * PARTS) - first  # in the row, of the block's first number
    target = out + row * width + place
    for word in tl.static_range(4):
        value = a if word == 0 else (b if word == 1 else (c if word == 2 else d))
        for part in tl.static_range(PARTS):
            at = place + word * PARTS + part
            inside = live & (at >= 0) & (at < width)
            piece = value >> (part * (64 // PARTS))
            if PARTS == 4:
                number = piece.to(tl.uint16).to(tl.int16, bitcast=True)
            else:  # 24 bits, as numpy makes a number in single precision of 32
                number = ((piece & 0xFFFFFFFF) >> 8).to(tl.float32) * 5.9604644775390625e-08
            tl.store(target + (word * PARTS + part), number, mask=inside)


def rows(keys: Tensor, section: int, width: int, coarse: bool) -> Tensor:
    """See :func:`fedpart.randomness.rows.rows`."""
    out = torch.empty(len(keys), width, dtype=torch.int16 if coarse else torch.float32, device=keys.device)
    numbers = 16 if coarse else 8  # of a block
    blocks = (width + 2 * numbers - 2) // numbers  # of a row that begins anywhere
    total = len(keys) * blocks
    if out.numel():
        with torch.cuda.device_of(keys):  # type: ignore[no-untyped-call]  # Triton takes the current one
            grid, start = (-(-total // BLOCK),), section << 32
            _philox[grid](out, keys, start, width, blocks, total, PARTS=numbers // 4, LANES=BLOCK)
    return out
