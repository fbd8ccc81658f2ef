"""int4: 15 levels in each block of 64 numbers, 4.5 bits a number."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.updates.codecs.base import CODECS
from fedpart.updates.codecs.blocks import Blocks

_ZERO = 8  # is added to a code: 1..15 in four bits


@CODECS.register("int4")
class FourBits(Blocks):
    """Half a byte a number: less than 1/7 of the largest number of its block away.

    The first number of two is in the lower four bits; a last one without a second has zeros in the upper.
    """

    def __init__(self) -> None:
        super().__init__(block=64, steps=7)

    def packed(self, numbers: int) -> int:
        return -(-numbers // 2)

    def pack(self, codes: Tensor) -> Tensor:
        pairs = F.pad((codes + _ZERO).view(torch.uint8), (0, len(codes) % 2)).view(-1, 2)
        return pairs[:, 0] | pairs[:, 1] << 4

    def unpack(self, data: Tensor, numbers: int) -> Tensor:
        pairs = torch.stack((data & 15, data >> 4), dim=1).view(-1)
        if pairs[numbers:].any():
            raise ValueError("bits behind the last code are not 0")
        return pairs[:numbers].view(torch.int8) - _ZERO
