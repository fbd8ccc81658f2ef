"""topk: the largest changes alone, and where they are."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.checks import require
from fedpart.updates.codecs.base import CODECS, Codec, Narrow


@CODECS.register("topk")
class TopK(Codec):
    """The k largest of n numbers by magnitude; the others are read as 0 (Aji and Heafield 2017).

    Bytes are the k numbers in the order of their places, and then the places as Elias and Fano encode an
    ascending sequence: l = floor(log2(n/k)) lower bits of each, and one bit string in which the i-th place p
    is a one at ``i + (p >> l)``. That is less than l + 3 bits a place, 8.6 where one number in 100 is sent:
    an index would take 32, and a bit for every number 100. How many they are follows from n and k.

    Args:
        share: k/n, in (0, 1]; at least one number of each cell is sent.
        values: the codec of the k numbers; None: single precision.

    Raises:
        ValueError: another share, or an unknown codec.
    """

    def __init__(self, share: float = 0.01, values: str | None = None) -> None:
        if not 0 < share <= 1:
            raise ValueError(
                f"The share of the changes that topk sends is above 0 and at most 1, got {share!r}."
            )
        self.share, self.sparse = share, share < 0.5
        self.values: Codec = Narrow(torch.float32) if values is None else CODECS.make(values, {})

    def count(self, numbers: int) -> int:
        """k."""
        return max(1, round(self.share * numbers))

    def size(self, numbers: int) -> int:
        count = self.count(numbers)
        low, high = _widths(numbers, count)
        return self.values.size(count) + -(-(count * low + high) // 8)

    def encode(self, values: Tensor, rng: np.random.Generator) -> Tensor:
        count = self.count(len(values))
        places = values.abs().topk(count, sorted=False).indices.sort().values
        low, high = _widths(len(values), count)
        lower = places[:, None] >> torch.arange(low, device=values.device) & 1
        upper = places.new_zeros(high)
        upper[(places >> low) + torch.arange(count, device=values.device)] = 1
        packed = _packed(torch.cat([lower.view(-1), upper]))
        return torch.cat([self.values.encode(values[places], rng), packed])

    def decode(self, data: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
        count = self.count(numbers)
        low, high = _widths(numbers, count)
        values, packed = data.tensor_split([self.values.size(count)])
        lower, upper, rest = _unpacked(packed).tensor_split([count * low, count * low + high])
        require(not rest.any(), "bits behind the last place are not 0")
        ones = upper.nonzero().view(-1)
        require(len(ones) == count, f"it has {len(ones)} places where {count} numbers are sent")
        each = torch.arange(count, device=data.device)
        weights = 1 << torch.arange(low, device=data.device)
        places = (ones - each << low) + (lower.view(count, low) * weights).sum(1)
        require(places[-1] < numbers, f"a place is beyond the {numbers} numbers there are")
        require(not (places.diff() <= 0).any(), "places do not ascend")
        dense = torch.zeros(numbers, dtype=dtype, device=data.device)
        dense[places] = self.values.decode(values, count, dtype)
        return dense


def _widths(numbers: int, count: int) -> tuple[int, int]:
    """How many lower bits a place has, and how long the string of the upper ones is."""
    low = (numbers // count).bit_length() - 1
    return low, count + (numbers - 1 >> low)


def _packed(bits: Tensor) -> Tensor:
    """Bits, 0 or 1, as bytes, the first one lowest; zeros behind the last."""
    rows = F.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    return (rows << torch.arange(8, device=bits.device)).sum(1).to(torch.uint8)


def _unpacked(data: Tensor) -> Tensor:
    """Inverse of :func:`_packed`, with the zeros."""
    return (data[:, None] >> torch.arange(8, dtype=torch.uint8, device=data.device) & 1).view(-1)
