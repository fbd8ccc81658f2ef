"""How somebody's network is called, and what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fedpart.trees import Tree

_WRAPPER = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def call(module: nn.Module, inputs: Tree, targets: Tree | None = None) -> Any:
    """The network at ``inputs``: a dict gives keyword arguments and a tuple positional ones, if ``forward``
    takes these, and one argument otherwise.

    Args:
        module: the network.
        inputs: of all rows.
        targets: for a network that computes its loss itself: under their own names if they are a dict, under
            the name ``labels`` if it takes that (or any arguments, as a wrapper does), or as the next
            argument behind the inputs.
    """
    parameters = inspect.signature(module.forward).parameters
    named: dict[str, Any] = {}
    last: tuple[Any, ...] = ()
    if targets is not None:
        if isinstance(targets, Mapping):
            named = dict(targets)
        elif "labels" in parameters or {p.kind for p in parameters.values()} >= _WRAPPER:
            named = {"labels": targets}
        else:
            last = (targets,)
    if isinstance(inputs, Mapping):
        behind = next((name for name in parameters if name not in inputs), "")
        also = {behind: targets} if last else named
        if _takes(module, **inputs, **also):
            return module(**inputs, **also)
    if isinstance(inputs, (tuple, list)) and _takes(module, *inputs, *last, **named):
        return module(*inputs, *last, **named)
    if targets is not None and not _takes(module, inputs, *last, **named):
        raise TypeError(
            f"The likelihood from_model calls the network with inputs and targets, which "
            f"{type(module).__name__}.forward{inspect.signature(module.forward)} does not take; give it an "
            f"argument `labels` and return the loss, or choose another likelihood."
        )
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
        inputs: a dict, tuple or list; one tensor has no parts.
        part: which; None: the only one with real numbers.
        transform, name: what is applied, and what it is called.

    Raises:
        ValueError: there is no such part, or none is named where several would do.
    """
    if isinstance(inputs, Tensor):
        raise ValueError(
            f"The inputs are one tensor, so the transform {name!r} cannot act on a part {part!r} of them; "
            f"leave out .on({part!r}), in a configuration its key `part`."
        )
    parts = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
    real = [key for key, leaf in parts.items() if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if part is None:
        part = real[0] if len(real) == 1 else None
    if part not in parts:
        example = next(iter(real or parts))
        raise ValueError(
            f"The inputs have the parts {', '.join(map(repr, parts))}; say which one the transform {name!r} "
            f"acts on: {type(transform).__name__}(...).on({example!r}), in a configuration part: {example}."
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


def has_logits(found: Any) -> bool:
    """Whether what a network returned names its outputs."""
    named = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
    return isinstance(named, Tensor)


def loss_of(found: Any, rows: int) -> Tensor:
    """The loss in what a network returns for so many rows, a scalar or one number for each ``[rows]``.

    Raises:
        TypeError: there is none.
        ValueError: it is neither one number nor one for each row.
    """
    loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
    if isinstance(found, Tensor):
        loss = found
    elif loss is None and isinstance(found, (tuple, list)) and found:
        loss = found[0]
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"The network returns a {type(found).__name__} without a loss; return it as .loss, ['loss'] or "
            f"the first of a tuple, or choose another likelihood than from_model."
        )
    if loss.shape == (rows,):
        return loss
    if loss.numel() == 1:
        return loss.reshape(())
    raise ValueError(
        f"The network returns a loss {list(loss.shape)} for {rows} rows; return their mean, or one "
        f"number for each row."
    )
