"""What is changed about the task's own copy of a network, so that it can be partitioned as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedpart.hyperparameters.dropout import ConcreteDropout
from fedpart.layers import FrozenBatchNorm
from fedpart.layers.replacing import replace_layers


def adapt(module: nn.Module, learn_dropout: bool) -> tuple[nn.Module, list[str]]:
    """The module, changed in place where that is possible, and a sentence about each change that is one.

    Silent, because they change no number: layers that work in place do not, and sparse gradients are dense.

    Args:
        module: the task's copy.
        learn_dropout: whether the rates of its nn.Dropout layers become hyperparameters.
    """
    notes: list[str] = []
    module, compiled = _uncompiled(module)
    if compiled:
        notes.append(
            f"{compiled} compiled blocks run as they are written: torch.compile steps aside where random "
            f"draws are watched for."
        )
    at_rest = not any(layer.training for layer in module.modules())  # as a whole
    frozen: list[str] = []
    learned: list[str] = []

    def replaced(name: str, layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, _BatchNorm) and not isinstance(layer, FrozenBatchNorm) and _is_constant(layer):
            frozen.append(name)
            return FrozenBatchNorm.of(layer)
        if learn_dropout and type(layer) is nn.Dropout and 0 < layer.p < 1 and (layer.training or at_rest):
            learned.append(name)
            return ConcreteDropout(layer.p).train(layer.training)
        return None

    module = replace_layers(module, replaced)
    if frozen:
        notes.append(
            f"{len(frozen)} BatchNorm layers that are frozen or in evaluation mode ({frozen[0]!r}, ...) keep "
            f"their statistics as constants."
        )
    if learned:
        notes.append(f"The rates of {len(learned)} nn.Dropout layers ({learned[0]!r}, ...) are learned.")
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            layer.sparse = False
    return module, notes


def _is_constant(layer: _BatchNorm) -> bool:
    """Whether its statistics shall not move: it is in evaluation mode, or its parameters are frozen."""
    if layer.running_mean is None:
        return False
    own = list(layer.parameters(recurse=False))
    return not layer.training or (bool(own) and not any(parameter.requires_grad for parameter in own))


def _uncompiled(module: nn.Module) -> tuple[nn.Module, int]:
    """The module without ``torch.compile``, and how many blocks had it; copying drops ``layer.compile()``."""
    count = 0

    def replaced(name: str, layer: nn.Module) -> nn.Module | None:
        nonlocal count
        if isinstance(inner := getattr(layer, "_orig_mod", None), nn.Module):  # torch.compile(module)
            count += 1
            inner, more = _uncompiled(inner)
            count += more
            return inner
        return None

    return replace_layers(module, replaced), count


def to_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Bring parameters and buffers to ``dtype``, in place; in a network with frozen weights of 16 bits these,
    and buffers of 16 bits, stay, and layers take inputs in the type of their own weights."""
    small = [p for p in model.parameters() if not p.requires_grad and _is_small(p)]

    def moved(tensor: Tensor) -> Tensor:
        stays = not tensor.is_floating_point() or (
            bool(small) and _is_small(tensor) and not tensor.requires_grad
        )
        return tensor if stays else tensor.to(dtype)

    model._apply(moved)  # type: ignore[no-untyped-call]
    if small:
        for layer in model.modules():
            hooked = _cast in layer._forward_pre_hooks.values()
            if next(layer.parameters(recurse=False), None) is not None and not hooked:
                layer.register_forward_pre_hook(_cast)


def _is_small(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype.itemsize <= 2


def _cast(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A layer's floating inputs in the type of its own weights."""
    dtype = next(p.dtype for p in layer._parameters.values() if p is not None)
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    if not dtype.is_floating_point or (autocast and dtype.itemsize > 2):
        return inputs
    return tuple(
        value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in inputs
    )
