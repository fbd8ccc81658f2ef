"""BatchNorm in a network that is partitioned: with constant statistics, or as GroupNorm; other constants."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from fedpart.checks import require
from fedpart.nn.layers.copying import copied, replace_layers

_GROUPS, _CHANNELS_PER_GROUP = 32, 16  # Wu & He 2018: at most 32 groups; at least 16 channels in each


class FrozenBatchNorm(_BatchNorm):
    """BatchNorm whose statistics are constants, whatever ``train()`` says, so that no examples are tied
    together; scale and bias may be trained."""

    def train(self, mode: bool = True) -> "FrozenBatchNorm":
        super().train(False)
        return self

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions."""

    @classmethod
    def of(cls, layer: _BatchNorm) -> "FrozenBatchNorm":
        """The same layer, its tensors shared, with its statistics frozen."""
        _check_forward(layer)
        frozen = cls(layer.num_features, layer.eps, layer.momentum, affine=layer.affine)
        frozen._parameters, frozen._buffers = dict(layer._parameters), dict(layer._buffers)
        return frozen.eval()


def replace_batchnorm(module: nn.Module, by: Literal["group", "frozen"]) -> nn.Module:
    """A copy of ``module`` without layers that mix the examples of a batch.

    Args:
        module: with any BatchNorm layers, also those of ``SyncBatchNorm``.
        by: ``group``: GroupNorm of at most 32 groups of at least 16 channels each (one for fewer), which
            keeps scale and bias; for networks that are trained from scratch. ``frozen``: the same layer, its
            running statistics constants; for pretrained networks.

    Raises:
        ValueError: another ``by``, ``frozen`` for a layer that has no running statistics, or a class derived
            from BatchNorm that has a ``forward()`` of its own.
    """
    require(by in ("group", "frozen"), f"BatchNorm is replaced by 'group' or by 'frozen', not by {by!r}.")

    def replaced(name: str, layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, _BatchNorm) or isinstance(layer, FrozenBatchNorm):
            return None
        if by == "group":
            return _group_norm(layer)
        if layer.running_mean is None:
            raise ValueError(
                f"{type(layer).__name__} at {name!r} has no running statistics that could be frozen; use "
                f'fedpart.replace_batchnorm(module, "group").'
            )
        return FrozenBatchNorm.of(layer)

    return replace_layers(copied(module), replaced)


def has_own_forward(layer: _BatchNorm) -> bool:
    """Whether the layer's class does something else than BatchNorm, or more."""
    return type(layer).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def is_constant(layer: nn.Module) -> bool:
    """Whether the layer's own state is a constant, since it is in evaluation mode: InstanceNorm with running
    statistics, BatchNorm with a ``forward()`` of its own, spectral normalisation of frozen weights."""
    if isinstance(layer, _NormBase):
        replaced = isinstance(layer, _BatchNorm) and not has_own_forward(layer)
        return not replaced and not layer.training and layer.running_mean is not None
    weights = spectral_weights(layer)
    at_rest = not any(part.training for part in layer.modules())
    return bool(weights) and at_rest and not any(weight.requires_grad for weight in weights)


def spectral_weights(layer: nn.Module) -> list[Tensor]:
    """The layer's own weights that ``spectral_norm``, old or new, divides by their norm."""
    weights: list[Tensor] = []
    if parametrize.is_parametrized(layer):
        for steps in layer.parametrizations.values():  # type: ignore[operator]
            if any(isinstance(step, _SpectralNorm) for step in steps):
                weights.append(steps.original)
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            weights.append(getattr(layer, f"{hook.name}_orig"))
    return weights


def _check_forward(layer: _BatchNorm) -> None:
    if layer.running_mean is not None and is_lazy(layer.running_mean):
        remedy = "run one batch first: module(inputs[:2])"
        raise ValueError(f"The shape of {type(layer).__name__} is not known yet; {remedy}.")
    if has_own_forward(layer):
        raise ValueError(
            f"{type(layer).__name__} is a BatchNorm with a forward() of its own, which would be lost; call "
            f"layer.eval() to keep its statistics, or put nn.GroupNorm and what else it does in its place."
        )


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    _check_forward(layer)
    channels = layer.num_features
    fitting = [g for g in range(1, _GROUPS + 1) if channels % g == 0 and channels // g >= _CHANNELS_PER_GROUP]
    kind: dict[str, Any] = {}
    if layer.weight is not None:
        kind = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    kind["bias"] = layer.bias is not None
    norm = nn.GroupNorm(max(fitting, default=1), channels, eps=layer.eps, affine=layer.affine, **kind)
    with torch.no_grad():
        for new, old in ((norm.weight, layer.weight), (norm.bias, layer.bias)):
            if old is not None:
                new.copy_(old).requires_grad_(old.requires_grad)
    return norm.train(layer.training)


def guard_group_norms(module: nn.Module) -> None:
    """Have GroupNorm on a CPU get images of the usual memory format where only scale and bias have a
    gradient: torch 2.13's backward pass crashes there with channels-last ones."""
    for layer in module.modules():
        if isinstance(layer, nn.GroupNorm) and _other_format not in layer._forward_pre_hooks.values():
            layer.register_forward_pre_hook(_other_format)


def _other_format(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    x = inputs[0]
    if x.requires_grad or x.device.type != "cpu" or not torch.is_grad_enabled():
        return None
    return (x.contiguous(), *inputs[1:])
