"""Copies of modules, and layers put in the place of others."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from fedpart.trees import memory_of

Copied = TypeVar("Copied")
DERIVED = "derived_from_weights"  # an attribute of a copied tensor: what its original was made of


def copied(module: Copied) -> Copied:
    """A deep copy; what a module keeps of a pass is copied without its gradient. What shares its memory or
    gradient with a weight follows the copied weight no more, and says so in its attribute :data:`DERIVED`."""
    weights = [] if not isinstance(module, nn.Module) else [*module.parameters()]
    with _WithoutGradients({memory_of(weight) for weight in weights if weight.requires_grad} - {0}):
        try:
            return copy.deepcopy(module)
        except TypeError as error:
            place, kind = _uncopied(module)
            fault = f"A copy of {type(module).__name__} cannot be made, which every client needs: {place} is"
            raise ValueError(f"{fault} a {kind} ({error}); keep it outside of the network.") from error


def _uncopied(module: Any) -> tuple[str, str]:
    """Which attribute has no copy, and of what kind it is."""
    layers = module.named_modules() if isinstance(module, nn.Module) else [("", module)]
    for name, layer in layers:
        for key, value in getattr(layer, "__dict__", {}).items():
            try:
                copy.deepcopy(value)
            except TypeError:
                if key not in nn.Module().__dict__:
                    return f"{name}.{key}".removeprefix("."), type(value).__name__
    return "it", type(module).__name__


class _WithoutGradients(TorchFunctionMode):
    """torch copies no tensor that follows from others, none of sparse rows, and none without a shape."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()
        self._weights = weights

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = self._instead(args[0]) if func is Tensor.__deepcopy__ else None
        return func(*args, **(kwargs or {})) if made is None else made

    def _instead(self, tensor: Tensor) -> Tensor | None:
        """What takes the place of torch's copy; None: torch's own."""
        if is_lazy(tensor):
            return tensor
        if tensor.layout not in (torch.strided, torch.sparse_coo):
            return tensor.detach().clone()
        shares = not isinstance(tensor, nn.Parameter) and memory_of(tensor) in self._weights
        if not shares and tensor.is_leaf:
            return None
        clone = tensor.detach().clone()  # of what has a weight's gradient or memory, and is none
        setattr(clone, DERIVED, f"a tensor {list(clone.shape)} made of weights")
        return clone


def replace_layers(module: nn.Module, replaced: Callable[[str, nn.Module], nn.Module | None]) -> nn.Module:
    """``module`` with layers replaced in place by what ``replaced`` gives for a name and a layer; None: it
    stays, and its parts are asked for. A layer that occurs in several places stays one layer."""
    visited: dict[int, nn.Module] = {}

    def visit(name: str, layer: nn.Module) -> nn.Module:
        if id(layer) not in visited:
            new = replaced(name, layer)
            visited[id(layer)] = layer if new is None else new
            if new is not None:
                _take_hooks(new, layer)
            else:
                for part, child in layer._modules.items():
                    if child is not None:
                        layer._modules[part] = visit(f"{name}.{part}" if name else part, child)
        return visited[id(layer)]

    return visit("", module)


def _take_hooks(new: nn.Module, layer: nn.Module) -> None:
    """Hooks that were registered on a layer, also on the one in its place."""
    for name, hooks in vars(layer).items():
        if name.startswith(("_forward_", "_backward_")) and "hooks" in name:
            getattr(new, name).update(hooks)
    new._is_full_backward_hook = layer._is_full_backward_hook
