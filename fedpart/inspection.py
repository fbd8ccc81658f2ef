"""Which modules can be partitioned, and which of their parameters are stacked."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def check_supported(module: nn.Module) -> None:
    """Refuse layers whose behaviour would let data leak between partitions or escape the explicit noise.

    Raises:
        ValueError: names the layer, the reason, and what to use instead.
    """
    for name, layer in module.named_modules():
        reason = _refusal(layer)
        if reason:
            raise ValueError(f"{type(layer).__name__} at {name or 'the top level'!r} cannot be partitioned: {reason}")


def _refusal(layer: nn.Module) -> str | None:
    if isinstance(layer, _NormBase) and layer.track_running_stats:
        return "its running statistics mix the data of all chunks; use GroupNorm or LayerNorm."
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return "its batch statistics tie examples together; use GroupNorm or LayerNorm."
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None:
        return "max_norm rewrites the weights in place; use max_norm=None and normalise the output."
    if getattr(layer, "inplace", False) is True:
        return "it works in place; use inplace=False."
    if isinstance(layer, _DropoutNd) and layer.p > 0:
        return "its noise is not reproducible; use fedpart.ConcreteDropout (its rate may stay fixed), or p=0."
    if isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0:
        return "its noise is not reproducible; use dropout=0 and a fedpart.ConcreteDropout after it."
    if isinstance(layer, nn.RNNBase):
        return "recurrent layers keep their weights in a packed form; use attention or convolutions."
    if any(is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
        return "its shape is not known yet; run one batch through the module first."
    return None


def stacked_parameters(module: nn.Module) -> dict[str, Any]:
    """Names of stacked parameters with their folds, ``{"norm.weight": "product", "norm.bias": "sum"}`` (App. I.2).

    Normalisation layers, and what a module declares in a class attribute ``stacked_parameters``.
    """
    folds: dict[str, Any] = {}
    for prefix, layer in module.named_modules():
        own: dict[str, Any] = dict(getattr(layer, "stacked_parameters", {}))
        if isinstance(layer, (*_NORMS, _NormBase)):
            own = {"weight": "product", "bias": "sum"}
        for name, fold in own.items():
            if fold not in ("product", "sum"):
                raise ValueError(f"A stacked parameter combines by 'product' or 'sum', not {fold!r} ({name!r}).")
            if getattr(layer, name, None) is not None:
                folds[f"{prefix}.{name}" if prefix else name] = fold
            elif name not in ("weight", "bias"):
                raise ValueError(f"{type(layer).__name__} declares {name!r} as stacked but has no such parameter.")
    return folds
