"""The network alone, with what was learned in its own layers; and what a network costs to compute."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fedpart.nn.hyperparameters.dropout import LearnedDropout
from fedpart.nn.layers.copying import copied, replace_layers
from fedpart.partition.sharing import Composed


def plain(module: nn.Module, weights: Mapping[str, Tensor], psi: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a task's module on the CPU, in eval mode, with these values; see ``ModelState.module``."""
    copy = copied(module)
    _fill(copy, weights)
    if isinstance(copy, Composed):
        copy = copy.plain()
    _fill(copy, psi)
    copy = replace_layers(
        copy, lambda name, layer: layer.plain() if isinstance(layer, LearnedDropout) else None
    )
    copy.eval()  # of the user's own, it may return nothing
    return copy


def _fill(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in values:
                parameter.copy_(values[name])


def multiply_adds(compute: Callable[[int], object]) -> int:
    """Of one more example, of convolutions and matrix products alone."""
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton, which takes half a second

    flops = []
    for examples in (1, 2):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            compute(examples)
        flops.append(int(counter.get_total_flops()))
    return (flops[1] - flops[0]) // 2
