"""How somebody's network is called, and what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fedpart.trees import Tree


def call(module: nn.Module, inputs: Tree, targets: Tree | None = None) -> Any:
    """The network at ``inputs``: a dict gives keyword arguments and a tuple positional ones, if ``forward``
    takes these, and one argument otherwise.

    Args:
        module: the network.
        inputs: of all rows.
        targets: for a network that computes its loss itself: under the name ``labels`` if it takes that,
            under their own names if they are a dict, or as the last argument.
    """
    named: dict[str, Any] = {}
    last: tuple[Any, ...] = ()
    if targets is not None:
        if isinstance(targets, Mapping):
            named = dict(targets)
        elif "labels" in inspect.signature(module.forward).parameters:
            named = {"labels": targets}
        else:
            last = (targets,)
    if isinstance(inputs, Mapping) and _takes(module, *last, **inputs, **named):
        return module(*last, **inputs, **named)
    if isinstance(inputs, (tuple, list)) and _takes(module, *inputs, *last, **named):
        return module(*inputs, *last, **named)
    return module(inputs, *last, **named)


def _takes(module: nn.Module, *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def replaced(inputs: Tree, part: str | int | None, transform: nn.Module, name: str) -> Tree:
    """Inputs of several parts, one of them transformed.

    Args:
        inputs: a dict, tuple or list.
        part: which; None: the only one with real numbers.
        transform, name: what is applied, and what it is called.

    Raises:
        ValueError: there is no such part, or none is named where several would do.
    """
    parts = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
    if part is None:
        real = [key for key, leaf in parts.items() if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        part = real[0] if len(real) == 1 else None
    if part not in parts:
        raise ValueError(
            f"The inputs have the parts {', '.join(map(repr, parts))}; say which one the transform {name!r} "
            f"acts on: {type(transform).__name__}(...).on({next(iter(parts))!r})."
        )
    parts[part] = transform(parts[part])
    return parts if isinstance(inputs, Mapping) else type(inputs)(parts.values())


def outputs_of(found: Any) -> Tensor:
    """The outputs in what a network returns: the tensor, ``.logits``, ``["logits"]``, or the first one.

    Raises:
        TypeError: there is no tensor.
    """
    if isinstance(found, Tensor):
        return found
    logits = getattr(found, "logits", None)
    if isinstance(found, Mapping) and logits is None:
        logits = found.get("logits", next(iter(found.values()), None))
    elif isinstance(found, (tuple, list)) and logits is None:
        logits = found[0] if found else None
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"The network returns a {type(found).__name__} in which no outputs are found; return a tensor, a "
            f"tuple whose first is one, or something with .logits."
        )
    return logits


def loss_of(found: Any) -> Tensor:
    """The loss in what a network returns, a scalar or one number per row.

    Raises:
        TypeError: there is none.
    """
    if isinstance(found, Tensor):
        return found
    loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
    if loss is None and isinstance(found, (tuple, list)):
        loss = found[0]
    if not (isinstance(loss, Tensor) and loss.ndim <= 1):
        raise TypeError(
            f"The network returns a {type(found).__name__} without a loss; return it as .loss, ['loss'] or "
            f"the first of a tuple, or choose another likelihood than from_model."
        )
    return loss
