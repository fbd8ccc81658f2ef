"""Layers with a state that training passes update, where it shall stay as it is."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from fedpart.nn.layers.batchnorm import has_own_forward


def is_constant(layer: nn.Module) -> bool:
    """Whether the layer's own state is a constant, since it is in evaluation mode.

    This holds for InstanceNorm with running statistics, for BatchNorm of a class with a ``forward()`` of its
    own, and for spectral normalisation of frozen weights, whose vectors belong to these weights.
    """
    if isinstance(layer, _NormBase):
        replaced = isinstance(layer, _BatchNorm) and not has_own_forward(layer)
        return not replaced and not layer.training and layer.running_mean is not None
    weights = spectral_weights(layer)
    at_rest = not any(part.training for part in layer.modules())
    return bool(weights) and at_rest and not any(weight.requires_grad for weight in weights)


def spectral_weights(layer: nn.Module) -> list[Tensor]:
    """The weights of the layer itself that ``spectral_norm`` divides by their norm, of the new kind and of
    the old."""
    found: list[Tensor] = []
    if parametrize.is_parametrized(layer):
        for steps in layer.parametrizations.values():  # type: ignore[operator]
            if any(isinstance(step, _SpectralNorm) for step in steps):
                found.append(steps.original)
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            found.append(getattr(layer, f"{hook.name}_orig"))
    return found
