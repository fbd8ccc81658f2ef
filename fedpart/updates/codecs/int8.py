"""int8: 255 levels in each block of 256 numbers, 8.125 bits a number."""

from fedpart.updates.codecs.base import CODECS
from fedpart.updates.codecs.blocks import Blocks


@CODECS.register("int8")
class EightBits(Blocks):
    """A byte a number: less than 1/127 of the largest number of its block away."""

    def __init__(self) -> None:
        super().__init__(block=256, steps=127)
