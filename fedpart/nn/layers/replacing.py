"""Layers of a module put in the place of others."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def replace_layers(module: nn.Module, replaced: Callable[[str, nn.Module], nn.Module | None]) -> nn.Module:
    """``module`` with layers replaced in place; one that occurs in several places stays one layer.

    Args:
        module: changed, unless it is itself replaced.
        replaced: what takes the place of the layer of that name; None: it stays, and its parts are asked for.
    """
    found: dict[int, nn.Module | None] = {}
    seen: set[int] = set()

    def visit(name: str, layer: nn.Module) -> nn.Module:
        if id(layer) not in found:
            found[id(layer)] = replaced(name, layer)
        new = found[id(layer)]
        if new is not None:
            _take_hooks(new, layer)
            return new
        if id(layer) not in seen:
            seen.add(id(layer))
            for part, child in layer._modules.items():
                if child is not None:
                    layer._modules[part] = visit(f"{name}.{part}" if name else part, child)
        return layer

    return visit("", module)


def _take_hooks(new: nn.Module, layer: nn.Module) -> None:
    """Hooks that were registered on a layer, also on the one in its place."""
    for name, hooks in vars(layer).items():
        if name.startswith(("_forward_", "_backward_")) and "hooks" in name:
            getattr(new, name).update(hooks)
    new._is_full_backward_hook = layer._is_full_backward_hook
