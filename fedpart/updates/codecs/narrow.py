"""Narrower numbers: fp16 and bf16."""

import torch

from fedpart.updates.codecs.base import CODECS, Narrow


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
