"""GroupNorm in channels-last memory format, behind what has no gradient."""

import torch
from torch import Tensor, nn


def guard_group_norms(module: nn.Module) -> None:
    """Keep torch 2.13 from a segmentation fault on CPUs, in place.

    Its backward pass of GroupNorm crashes where the images are in channels-last memory format and only scale
    and bias have a gradient: behind layers that are frozen, or psi while weights are trained. These images
    take the other memory format; their numbers stay as they are.
    """
    for layer in module.modules():
        if isinstance(layer, nn.GroupNorm) and _other_format not in layer._forward_pre_hooks.values():
            layer.register_forward_pre_hook(_other_format)


def _other_format(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    x = inputs[0]
    if x.requires_grad or x.device.type != "cpu" or not torch.is_grad_enabled():
        return None
    return (x.contiguous(), *inputs[1:])
