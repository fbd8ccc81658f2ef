"""Copies of modules."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

Copied = TypeVar("Copied")
DERIVED = "derived_from_weights"  # an attribute of a copied tensor: what its original was made of


def copied(module: Copied) -> Copied:
    """A deep copy; what a module keeps of a pass, such as activations, is copied without its gradient.

    The copy of what shares its memory or its gradient with a weight, as a transpose does, follows it no more.
    It says so in its attribute :data:`DERIVED`.
    """
    weights = [] if not isinstance(module, nn.Module) else [*module.parameters()]
    with _WithoutGradients({_memory(weight) for weight in weights if weight.requires_grad} - {0}):
        return copy.deepcopy(module)


class _WithoutGradients(TorchFunctionMode):
    """torch copies no tensor that was computed from others, and none that has no shape yet."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()
        self._weights = weights

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copies, tensor = func is Tensor.__deepcopy__, next(iter(args), torch.empty(0))
        if copies and is_lazy(tensor):
            return tensor
        if not copies or (tensor.is_leaf and not self._shares(tensor)):
            return func(*args, **(kwargs or {}))
        found = tensor.detach().clone()
        setattr(found, DERIVED, f"a tensor {list(tensor.shape)} made of weights")
        return found

    def _shares(self, tensor: Tensor) -> bool:
        return not isinstance(tensor, nn.Parameter) and _memory(tensor) in self._weights


def _memory(tensor: Tensor) -> int:
    return 0 if is_lazy(tensor) or tensor.layout != torch.strided else tensor.untyped_storage().data_ptr()
