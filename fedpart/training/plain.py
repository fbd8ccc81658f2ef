"""The network alone, with what was learned in its own layers."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedpart.nn.hyperparameters.dropout import LearnedDropout
from fedpart.nn.layers.copying import copied, replace_layers
from fedpart.partition.sharing import Composed


def plain(module: nn.Module, weights: Mapping[str, Tensor], psi: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a task's module on the CPU, in eval mode, with these values; see :meth:`.ModelState.module`.

    Args:
        module: of the task.
        weights, psi: values of its parameters by name; those of others stay.
    """
    copy = copied(module)
    _fill(copy, weights)
    if isinstance(copy, Composed):
        copy = copy.plain()
    _fill(copy, psi)
    return replace_layers(
        copy, lambda name, layer: layer.plain() if isinstance(layer, LearnedDropout) else None
    ).eval()


def _fill(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in values:
                parameter.copy_(values[name])
