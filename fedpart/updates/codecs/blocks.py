"""int8 and int4: numbers as whole multiples of a scale that their block has, rounded at random."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.checks import require
from fedpart.updates.codecs.base import CODECS, Codec, read

_SCALE = torch.float32


class Blocks(Codec):
    """Stochastic rounding (QSGD: Alistarh et al. 2017, with the largest value of a block for its norm).

    The scale of a block is ``s = max |x| / steps``, and a number ``x = (m + f) s`` becomes ``(m + 1) s`` with
    probability f, else ``m s``: it is right on average, and less than s away. Bytes are the scales in single
    precision and then the codes m as :meth:`pack` leaves them.

    Args:
        block: numbers that share a scale; the last block of a partition may be shorter.
        steps: the largest m.
    """

    def __init__(self, block: int, steps: int) -> None:
        self.block, self.steps = block, steps

    def packed(self, numbers: int) -> int:
        """How many bytes so many codes take."""
        return numbers

    def pack(self, codes: Tensor) -> Tensor:
        """The bytes of the codes, int8 ``[n]`` in -steps..steps: as they are."""
        return codes.view(torch.uint8)

    def unpack(self, data: Tensor, numbers: int) -> Tensor:
        """Inverse of :meth:`pack`, for any bytes; ValueError: it does not make these."""
        return data.view(torch.int8)

    def size(self, numbers: int) -> int:
        return self._count(numbers) * _SCALE.itemsize + self.packed(numbers)

    def encode(self, values: Tensor, rng: np.random.Generator) -> Tensor:
        rows = self._rows(values)
        scales = (rows.abs().amax(1) / self.steps).to(_SCALE)
        # a scale of 0 and one that is not finite have any codes: those of 0
        rows = (rows / scales[:, None]).nan_to_num_(0.0).clamp_(-self.steps, self.steps)
        lower = rows.floor()
        drawn = torch.from_numpy(rng.random(tuple(rows.shape), dtype=np.float32)).to(values.device)
        codes = lower.add_(drawn < rows.sub_(lower)).to(torch.int8).view(-1)[: len(values)]
        return torch.cat([scales.view(torch.uint8), self.pack(codes)])

    def decode(self, data: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
        scales, packed = data.tensor_split([self._count(numbers) * _SCALE.itemsize])
        scales, codes = read(scales, _SCALE), self.unpack(packed, numbers)
        require(not (scales < 0).any(), "a block has a scale below 0")
        require(codes.min() >= -self.steps, f"a code is below -{self.steps}")
        return self._rows(codes).to(dtype).mul_(scales[:, None].to(dtype)).view(-1)[:numbers]

    def _count(self, numbers: int) -> int:
        """How many blocks so many numbers have."""
        return -(-numbers // self.block)

    def _rows(self, values: Tensor) -> Tensor:
        """``[n]`` as rows of one block each, filled up with zeros."""
        count = self._count(len(values))
        return F.pad(values, (0, count * self.block - len(values))).view(count, self.block)


@CODECS.register("int8")
class EightBits(Blocks):
    """A byte a number: less than 1/127 of the largest number of its block away."""

    def __init__(self) -> None:
        super().__init__(block=256, steps=127)


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
        require(not pairs[numbers:].any(), "bits behind the last code are not 0")
        return pairs[:numbers].view(torch.int8) - _ZERO
