"""Codec: the bytes in which the change of a partition travels from a client to the server."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedpart.registry import Registry


class Codec(ABC):
    """Subclass it in a file of its own and register it: ``@CODECS.register("name")``.

    It is made with ``upload_options`` and keeps nothing from one call to the next. Each partition is encoded
    by itself. Engines in one process take what :meth:`decode` makes of the bytes, as a server does of a
    message.

    Attributes:
        sparse: whether most numbers that are read are 0.
    """

    sparse: bool = False

    @abstractmethod
    def size(self, numbers: int) -> int:
        """In how many bytes so many numbers travel; what arrives in more or fewer is refused unread."""

    @abstractmethod
    def encode(self, values: Tensor, rng: np.random.Generator) -> Tensor:
        """The bytes of ``values [n]``.

        Args:
            values: on any device, which stay as they are; where some are not finite, so is a number of what
                :meth:`decode` makes of the bytes.
            rng: the randomness of this client, round and partition.

        Returns:
            uint8, ``[size(n)]``, on their device.
        """

    @abstractmethod
    def decode(self, data: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
        """The numbers behind bytes that anybody may have sent.

        Args:
            data: uint8, ``[size(numbers)]``.
            numbers: n, at least 1.
            dtype: of the result.

        Returns:
            ``[n]``, memory of its own; they need not be finite, for numbers are checked after this.

        Raises:
            ValueError: bytes that :meth:`encode` does not make; a clause that says why.
        """


CODECS: Registry[Callable[..., Codec]] = Registry("upload codec", makes=(Codec,))


class Narrow(Codec):
    """Every number rounded to the nearest one of a narrower type, ties to even."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def size(self, numbers: int) -> int:
        return numbers * self.dtype.itemsize

    def encode(self, values: Tensor, rng: np.random.Generator) -> Tensor:
        return values.to(self.dtype).view(torch.uint8)

    def decode(self, data: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
        return read(data, self.dtype).to(dtype)


@CODECS.register("fp16")
class HalfPrecision(Narrow):
    """IEEE's half precision: an error of 2^-11 of a number, and of 2^-25 where it is below 2^-14."""

    def __init__(self) -> None:
        super().__init__(torch.float16)


@CODECS.register("bf16")
class BrainFloat(Narrow):
    """An error of 2^-8 of a number, small or large."""

    def __init__(self) -> None:
        super().__init__(torch.bfloat16)


def read(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers of a type; a copy, for they may lie anywhere in a message."""
    return data.clone().view(dtype)
