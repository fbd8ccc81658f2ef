"""What a network costs to compute."""

from collections.abc import Callable

import torch


def multiply_adds(compute: Callable[[int], object]) -> int:
    """Of one more example, of convolutions and matrix products alone.

    What a pass costs besides, such as composing weights from shared numbers, is left out.

    Args:
        compute: makes a pass with so many examples.
    """
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton, which takes half a second

    flops = []
    for examples in (1, 2):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            compute(examples)
        flops.append(int(counter.get_total_flops()))
    return (flops[1] - flops[0]) // 2
