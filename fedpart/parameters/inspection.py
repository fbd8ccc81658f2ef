"""Which modules can be partitioned, and which of their parameters are stacked."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm

_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def check_supported(module: nn.Module) -> None:
    """Refuse layers whose behaviour would let data leak between partitions or escape the explicit noise.

    Raises:
        ValueError: names the layer, the reason, and what to use instead.
    """
    for name, layer in module.named_modules():
        reason = _refusal(layer)
        if reason:
            where = repr(name) if name else "the top level"
            raise ValueError(f"{type(layer).__name__} at {where} cannot be partitioned: {reason}")


def _refusal(layer: nn.Module) -> str | None:
    if isinstance(layer, _NormBase) and layer.track_running_stats:
        return "its running statistics mix the data of all chunks; use GroupNorm or LayerNorm."
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return "its batch statistics tie examples together; use GroupNorm or LayerNorm."
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse:
        return "its gradients are sparse; use sparse=False."
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None:
        return "max_norm rewrites the weights in place; use max_norm=None and normalise the output."
    if getattr(layer, "inplace", False) is True:
        return "it works in place; use inplace=False."
    if isinstance(layer, _DropoutNd) and layer.p > 0:
        return "its noise is not reproducible; use fedpart.ConcreteDropout (its rate may stay fixed), or p=0."
    if isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0:
        return "its noise is not reproducible; use dropout=0 and a fedpart.ConcreteDropout after it."
    if isinstance(layer, nn.RReLU):
        return "its noise is not reproducible; use LeakyReLU, or a layer that draws from fedpart.uniform."
    if isinstance(layer, (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)):
        return "its noise is not reproducible; use MaxPool or AdaptiveMaxPool."
    if isinstance(layer, _SpectralNorm):
        return "it updates its vectors in every forward pass; use weight_norm, or no reparametrisation."
    if isinstance(layer, nn.RNNBase):
        return "recurrent layers keep their weights in a packed form; use attention or convolutions."
    if any(is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
        return "its shape is not known yet; run one batch through the module first."
    return None


def stacked_parameters(module: nn.Module) -> dict[str, Any]:
    """Names of stacked parameters and how they fold, ``{"norm.weight": "product", "norm.bias": "sum"}``.

    Those of normalisation layers (App. I.2), and what a module declares in its ``stacked_parameters``.
    """
    folds: dict[str, Any] = {}
    for prefix, layer in module.named_modules():
        own: dict[str, Any] = dict(getattr(layer, "stacked_parameters", {}))
        for name in own:
            if not hasattr(layer, name):
                raise ValueError(
                    f"{type(layer).__name__} declares {name!r} as stacked but has no such parameter."
                )
        if isinstance(layer, (*_NORMS, _NormBase)):
            own = {"weight": "product", "bias": "sum", **own}
        for name, fold in own.items():
            if getattr(layer, name, None) is not None:  # None: a norm without scale or bias
                folds[f"{prefix}.{name}" if prefix else name] = fold
    return folds
