"""What is changed about the task's own copy of a network, so that it can be partitioned as it is."""

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from fedpart.nn.hyperparameters.dropout import ConcreteDropout, LearnedDropout
from fedpart.nn.layers import FrozenBatchNorm
from fedpart.nn.layers.batchnorm import has_own_forward, is_constant
from fedpart.nn.layers.copying import replace_layers
from fedpart.trees import Tree, tensors_in


def adapt(module: nn.Module, learn_dropout: bool, dtype: torch.dtype) -> tuple[nn.Module, list[str]]:
    """The task's copy, changed in place where that is possible, and a sentence about each change that changes
    a number."""
    notes: list[str] = []
    module, compiled = _uncompiled(module)
    if compiled:
        notes.append(
            f"{compiled} compiled blocks run as they are written: torch.compile steps aside where random "
            f"draws are watched for."
        )
    at_rest = not any(layer.training for layer in module.modules())  # as a whole: it shall be trained
    if off := 0 if at_rest else _dropouts_at_rest(module):
        notes.append(f"{off} Dropout layers are in eval() and stay off; call module.train() to use them.")
    tensors = (*module.named_parameters(), *module.named_buffers())
    doubles = [name for name, tensor in tensors if tensor.dtype == torch.float64 != dtype]
    if doubles:
        notes.append(f"float64 becomes float32: {_some(doubles)}; with precision fp64 no digit is lost.")
    frozen, learned = list[str](), list[str]()

    def replaced(name: str, layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, _BatchNorm) and not isinstance(layer, FrozenBatchNorm) and _keeps(layer):
            frozen.append(name)
            return None if has_own_forward(layer) else FrozenBatchNorm.of(layer)
        if learn_dropout and type(layer) is nn.Dropout and 0 < layer.p < 1 and (layer.training or at_rest):
            learned.append(name)
            return LearnedDropout(layer.p).train(layer.training)
        return None

    module = replace_layers(module, replaced)
    if frozen:
        notes.append(
            f"BatchNorm layers that are frozen or in evaluation mode keep their statistics as constants: "
            f"{_some(frozen)}."
        )
    if learned:
        notes.append(
            f"The rates of nn.Dropout layers are learned where forward() calls the layer: {_some(learned)}. "
            f"Where it reads the rate of a layer alone, that rate stays."
        )
    elif learn_dropout:
        notes.append(
            "learn_dropout=True finds no nn.Dropout with a rate between 0 and 1 outside of eval(), so that "
            "no rate is learned; put fedpart.ConcreteDropout(0.1) where one shall be."
        )
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            layer.sparse = False
    if at_rest:
        constant = [layer for layer in module.modules() if is_constant(layer)]
        module.train()
        for layer in constant:
            layer.eval()
    return module, notes


def _some(names: list[str]) -> str:
    """``'drop'``; ``'a' and 7 more``."""
    return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _dropouts_at_rest(module: nn.Module) -> int:
    """How many layers that would drop something do not, in a network whose top or a trained part trains."""
    trained = (layer for layer in module.modules() if layer.training)
    if not module.training and not any(p.requires_grad for part in trained for p in part.parameters(False)):
        return 0
    drops = (part for part in module.modules() if isinstance(part, (_DropoutNd, ConcreteDropout)))
    return sum(getattr(part, "p", 1.0) > 0 and not part.training for part in drops)


def _keeps(layer: _BatchNorm) -> bool:
    """Whether its statistics shall not move: it is in evaluation mode, or its parameters are frozen."""
    if layer.running_mean is None or is_lazy(layer.running_mean):
        return False
    if has_own_forward(layer):
        return is_constant(layer)
    affine = list(layer.parameters(recurse=False))
    return not layer.training or (bool(affine) and not any(parameter.requires_grad for parameter in affine))


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


def dtype_of(precision: str) -> torch.dtype:
    """Type of parameters, psi and inputs under a precision."""
    if precision not in ("fp32", "fp64", "bf16"):
        raise ValueError(f"Unknown precision {precision!r}: choose fp32, fp64 or bf16.")
    return torch.float64 if precision == "fp64" else torch.float32


def to_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Bring parameters and buffers to ``dtype``, in place; in a network with frozen weights of 16 bits these,
    and buffers of 16 bits, stay, and layers take inputs in the type of their own weights."""
    small = [p for p in model.parameters() if not p.requires_grad and _is_small(p)]

    def moved(tensor: Tensor) -> Tensor:
        stays = small and _is_small(tensor) and not tensor.requires_grad
        return tensor if stays or not tensor.is_floating_point() else tensor.to(dtype)

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


def explain_types(module: nn.Module, inputs: Tree, error: RuntimeError) -> None:
    """Say what is meant by an error of torch about types: of frozen weights of 16 bits, or of whole
    numbers."""
    if not re.search("dtype|scalar type|Input type|the type torch|not implemented for 'Long'", str(error)):
        return
    kinds = {name: p.dtype for name, p in module.named_parameters() if p.is_floating_point()}
    small = next((name for name, kind in kinds.items() if kind.itemsize <= 2), None)  # the others are trained
    if small is None:
        if any(leaf.dtype == torch.int64 for leaf in tensors_in(inputs)):
            raise ValueError(
                f"The network computes with real numbers, and the inputs are whole ones, as for tokens "
                f"({error}); make them real, inputs.float(), and numbers beyond 2**24, such as stamps, small "
                f"before: inputs - inputs.min()."
            ) from error
        return
    wide = [name for name, kind in kinds.items() if kind.itemsize > 2]
    wide.sort(key=lambda name: name.rpartition(".")[0] != small.rpartition(".")[0])  # of the same layer first
    beside = f"{wide[0]!r} is {str(kinds[wide[0]]).removeprefix('torch.')}" if wide else "its inputs are not"
    raise ValueError(
        f"The frozen parameter {small!r} is {str(kinds[small]).removeprefix('torch.')} while {beside}, and "
        f"forward() computes with both; call module.float() before Task(module)."
    ) from error
