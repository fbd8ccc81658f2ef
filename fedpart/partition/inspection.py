"""Which modules can be partitioned, and which of their parameters are stacked."""

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.weight_norm import WeightNorm

from fedpart.nn.layers import FrozenBatchNorm
from fedpart.nn.layers.batchnorm import has_own_forward, is_constant, spectral_weights

_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def check_supported(module: nn.Module, chunks: int = 1) -> None:
    """Refuse layers that would let data leak between C partitions, or, of several, that tie examples; the
    message names all of them and the code to use instead."""
    refused: dict[tuple[str, str], list[str]] = {}
    for name, layer in module.named_modules():
        reason = _refusal(layer)
        if reason is None and chunks > 1 and ties_examples(layer):
            reason = (
                "in training it computes with several examples at a time, so that none has its own loss; "
                "train it with method: none, or use another kind of network"
            )
        if reason:
            where = repr(name) if name else "the top level"
            refused.setdefault((type(layer).__name__, reason), []).append(where)
    clauses = []
    for (kind, reason), places in refused.items():
        more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
        clauses.append(f"{kind} at {places[0]}{more} cannot be partitioned: {reason}")
    if clauses:
        raise ValueError("; ".join(clauses) + ".")


def _refusal(layer: nn.Module) -> str | None:
    tensors = [*layer._parameters.values(), *layer._buffers.values()]
    if any(tensor is not None and is_lazy(tensor) for tensor in tensors):
        return "its shape is not known yet; run one batch through the module first: module(inputs[:2])"
    if isinstance(layer, FrozenBatchNorm) or is_constant(layer):
        return None
    if isinstance(layer, _BatchNorm):
        way_out = 'use module = fedpart.replace_batchnorm(module, "group"), or "frozen" if it is pretrained'
        if has_own_forward(layer):
            way_out = (
                "call layer.eval() if it is pretrained, or put nn.GroupNorm and what else its forward() does "
                "in its place"
            )
        return f"its batch statistics tie examples together and mix the data of all chunks; {way_out}"
    if isinstance(layer, _NormBase) and layer.track_running_stats:
        kind = type(layer).__name__
        return (
            f"its running statistics mix the data of all chunks; use nn.{kind}({layer.num_features}, "
            f"affine={layer.affine}, track_running_stats=False)"
        )
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None:
        return (
            "max_norm rewrites the weights in place; set layer.max_norm = None, and normalise its output "
            "with torch.nn.functional.normalize"
        )
    if spectral_weights(layer):
        remove = (
            'torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")'
            if parametrize.is_parametrized(layer)
            else "torch.nn.utils.remove_spectral_norm(layer)"
        )
        return f"spectral_norm updates its vectors in every training pass; call {remove}"
    if any(isinstance(hook, WeightNorm) for hook in layer._forward_pre_hooks.values()):
        return (
            "the old weight_norm keeps its weights between passes; call "
            "torch.nn.utils.remove_weight_norm(layer), and then "
            "torch.nn.utils.parametrizations.weight_norm(layer)"
        )
    names = (name for name, p in layer.named_parameters(recurse=False) if p.requires_grad and p.is_complex())
    if name := next(names, ""):
        return (
            f"its parameter {name!r} is complex; train layer.{name} = "
            f"nn.Parameter(torch.view_as_real(layer.{name}.detach())), and compute with "
            f"torch.view_as_complex(layer.{name})"
        )
    return None


def ties_examples(layer: nn.Module) -> bool:
    """Whether an example's outputs depend on others of its batch in training, as a layer says of itself."""
    return bool(getattr(layer, "ties_examples", False))


def stacked_parameters(module: nn.Module) -> dict[str, Any]:
    """Names of stacked parameters and how they fold, ``{"norm.weight": "product", "norm.bias": "sum"}``: of
    normalisation layers (App. I.2), and of a module's ``stacked_parameters``."""
    folds: dict[str, Any] = {}
    for prefix, layer in module.named_modules():
        declared: dict[str, Any] = dict(getattr(layer, "stacked_parameters", {}))
        for name in declared:
            if not hasattr(layer, name):
                raise ValueError(
                    f"{type(layer).__name__} declares {name!r} as stacked but has no such parameter."
                )
        if isinstance(layer, (*_NORMS, _NormBase)):
            declared = {"weight": "product", "bias": "sum", **declared}
        for name, fold in declared.items():
            if getattr(layer, name, None) is not None:  # None: a norm without scale or bias
                if parametrize.is_parametrized(layer, name):  # as a slice of another layer's
                    name = f"parametrizations.{name}.original"
                folds[f"{prefix}.{name}" if prefix else name] = fold
    return folds
