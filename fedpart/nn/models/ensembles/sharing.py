"""Parameters that several members of an ensemble have in common."""

from __future__ import annotations

from torch import Tensor, nn

NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def layers_of(member: nn.Module) -> dict[str, nn.Module]:
    """The layers that have parameters of their own, by name."""
    layers = dict(member.named_modules())
    return {
        name: layer for name, layer in layers.items() if any(True for _ in layer.parameters(recurse=False))
    }


def share(layer: nn.Module, name: str, parameter: Tensor) -> None:
    """Tie a parameter: ``layer`` has another layer's in the place of its own."""
    layer.register_parameter(name, parameter)  # type: ignore[arg-type]
