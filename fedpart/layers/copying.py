"""Copies of modules."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

Copied = TypeVar("Copied")


def copied(module: Copied) -> Copied:
    """A deep copy; what a module keeps of a pass, such as activations, is copied without its gradient."""
    with _WithoutGradients():
        return copy.deepcopy(module)


class _WithoutGradients(TorchFunctionMode):
    """torch copies no tensor that was computed from others, and none that has no shape yet."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and is_lazy(args[0]):
            return args[0]
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))
