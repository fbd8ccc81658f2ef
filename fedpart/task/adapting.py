"""What is changed about the task's own copy of a network, so that it can be partitioned as it is."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from fedpart.hyperparameters.dropout import LearnedDropout
from fedpart.layers import FrozenBatchNorm
from fedpart.layers.batchnorm import has_own_forward
from fedpart.layers.constant import is_constant
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
    at_rest = not any(layer.training for layer in module.modules())  # as a whole: it shall be trained
    if not at_rest and (off := _dropouts_at_rest(module)):
        notes.append(f"{off} Dropout layers are in eval() and stay off; call module.train() to use them.")
    frozen: list[str] = []
    learned: list[str] = []

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
    own = (layer.parameters(recurse=False) for layer in module.modules() if layer.training)
    trains = module.training or any(parameter.requires_grad for some in own for parameter in some)
    off = [one for one in module.modules() if isinstance(one, _DropoutNd) and one.p > 0 and not one.training]
    return len(off) if trains else 0


def _keeps(layer: _BatchNorm) -> bool:
    """Whether its statistics shall not move: it is in evaluation mode, or its parameters are frozen."""
    if layer.running_mean is None or is_lazy(layer.running_mean):
        return False
    if has_own_forward(layer):
        return is_constant(layer)
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
