"""Types of numbers in a network: one for all, but frozen weights of 16 bits stay as they are."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence


def dtype_of(precision: str) -> torch.dtype:
    """Type of parameters, psi and inputs under a precision.

    Raises:
        ValueError: there is no such precision.
    """
    if precision not in ("fp32", "fp64", "bf16"):
        raise ValueError(f"Unknown precision {precision!r}: choose fp32, fp64 or bf16.")
    return torch.float64 if precision == "fp64" else torch.float32


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
                layer.register_forward_pre_hook(_cast, with_kwargs=True)


def _is_small(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype.itemsize <= 2


def _cast(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """A layer's floating inputs in the type of its own weights."""
    dtype = next(p.dtype for p in layer._parameters.values() if p is not None)
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    if not dtype.is_floating_point or (autocast and dtype.itemsize > 2):
        return inputs, named
    return _in_type(inputs, dtype), _in_type(named, dtype)


def _in_type(value: Any, dtype: torch.dtype) -> Any:
    """A tensor, or plain containers of such, with floating numbers of that type."""
    if isinstance(value, (Tensor, PackedSequence)):
        numbers = value.data if isinstance(value, PackedSequence) else value
        return value.to(dtype) if numbers.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(_in_type(part, dtype) for part in value)
    if type(value) is dict:
        return {key: _in_type(part, dtype) for key, part in value.items()}
    return value


def explain_types(module: nn.Module, error: RuntimeError) -> None:
    """Say what is meant by an error of torch about types, where a network has frozen weights of 16 bits.

    Raises:
        ValueError: it is such an error.
    """
    kinds = {name: p.dtype for name, p in module.named_parameters() if p.is_floating_point()}
    small = next((name for name, kind in kinds.items() if kind.itemsize <= 2), None)  # the others are trained
    if small is None or not re.search("dtype|scalar type|Input type", str(error)):
        return
    wide = [name for name, kind in kinds.items() if kind.itemsize > 2]
    wide.sort(key=lambda name: name.rpartition(".")[0] != small.rpartition(".")[0])  # of the same layer first
    beside = f"{wide[0]!r} is {str(kinds[wide[0]]).removeprefix('torch.')}" if wide else "its inputs are not"
    raise ValueError(
        f"The frozen parameter {small!r} is {str(kinds[small]).removeprefix('torch.')} while {beside}, and "
        f"forward() computes with both; call module.float() before Task(module)."
    ) from error
