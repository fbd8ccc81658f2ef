"""bf16: numbers of 16 bits, 8 of them significant, with the range of single precision."""

import torch

from fedpart.updates.codecs.base import CODECS, Narrow


@CODECS.register("bf16")
class BrainFloat(Narrow):
    """An error of 2^-8 of a number, small or large."""

    def __init__(self) -> None:
        super().__init__(torch.bfloat16)
