"""How somebody's network is called, and what it returns."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from fedpart.checks import NetworkError
from fedpart.partition.sharing import within
from fedpart.trees import Tree

TARGETS = ("labels", "label", "targets", "target", "y")  # what forward calls them
_STARS: Mapping[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def call(module: nn.Module, inputs: Tree, targets: Tree | None = None) -> Any:
    """The network at ``inputs`` of all rows: a dict gives keyword arguments and a tuple positional ones, if
    ``forward`` takes these, and one argument otherwise. One that computes its loss itself gets ``targets``,
    see :func:`_with_targets`."""
    if targets is None and isinstance(inputs, Tensor):
        try:
            return module(inputs)
        except TypeError as error:
            signature = inspect.signature(within(module).forward)
            if _fits(signature, (inputs,), {}):
                raise
            raise _misfit(signature, inputs, targets) from error
    signature = inspect.signature(within(module).forward)
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}
    args = () if kwargs else tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    for arguments in _with_targets(signature.parameters, args, kwargs, targets):
        if _fits(signature, *arguments):
            return module(*arguments[0], **arguments[1])
    if not (isinstance(inputs, Tensor) or kwargs.keys() & signature.parameters.keys()):
        alone = next(iter(kwargs.values())) if len(kwargs) == 1 and _of_tensors(module) else inputs
        for args, kwargs in _with_targets(signature.parameters, (alone,), {}, targets):
            if _fits(signature, args, kwargs):
                try:
                    return module(*args, **kwargs)
                except (TypeError, AttributeError, KeyError) as error:
                    raise _misfit(signature, inputs, targets, error) from error
    raise _misfit(signature, inputs, targets)


def _with_targets(
    parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: dict[str, Any], targets: Tree
) -> Iterator[_Arguments]:
    """The arguments with the targets among them, in the ways that are tried in turn: under their own names if
    they are a dict that fits; under the first of :data:`TARGETS` that ``forward`` has, or ``labels`` if it
    takes any arguments, as a wrapper does; as the only argument that is left, or the only required one."""
    if targets is None:
        yield args, kwargs
        return
    if isinstance(targets, Mapping) and not targets.keys() & kwargs.keys():
        yield args, {**kwargs, **targets}
    kinds = {parameter.kind for parameter in parameters.values()}
    free = [p for p in [*parameters.values()][len(args) :] if p.name not in kwargs and p.kind not in _STARS]
    required = [parameter for parameter in free if parameter.default is parameter.empty]
    named = [name for name in TARGETS if name in (parameter.name for parameter in free)]
    if named or (kinds >= _STARS.keys() and "labels" not in kwargs):
        yield args, {**kwargs, (*named, "labels")[0]: targets}
    elif len(left := required or free) == 1 and left[0].kind is not inspect.Parameter.POSITIONAL_ONLY:
        yield args, {**kwargs, left[0].name: targets}
    elif len(left) == 1 or inspect.Parameter.VAR_POSITIONAL in kinds:
        yield (*args, targets), kwargs


def _fits(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _of_tensors(module: nn.Module) -> bool:
    """Whether the network begins with a layer that is known to take tensors, and never a dict of them."""
    module = within(module)
    while isinstance(module, nn.Sequential) and len(module):
        module = module[0]
    return type(module).__module__.split(".")[0] in ("torch", "torchvision", "fedpart")


def _misfit(
    signature: inspect.Signature, inputs: Tree, targets: Tree | None, error: Exception | None = None
) -> ValueError:
    """What is said about inputs that are not the arguments of ``forward``."""
    takes = ", ".join(
        f"{_STARS.get(p.kind, '')}{p.name}{'' if p.default is p.empty else '=...'}"
        for p in signature.parameters.values()
    )
    if isinstance(inputs, Mapping):
        told = f"a dict of {', '.join(map(repr, inputs))}"
    else:
        told = "one tensor" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__} of {len(inputs)}"
    cause = "" if error is None else f" ({type(error).__name__}: {error})"
    if targets is not None:
        told, cause = f"{told}, and targets", f"{cause}; call the argument for the targets labels"
    return ValueError(
        f"The inputs are {told}, but the network has forward({takes}){cause}; give a dict whose keys are "
        f"its arguments, or a tuple in their order."
    )


def replaced(inputs: Tree, part: str | int | None, transform: nn.Module, name: str) -> Tree:
    """Inputs of several parts, one of them transformed; None: the only one with real numbers."""
    if isinstance(inputs, Tensor):
        fault = f"The inputs are one tensor, so the transform {name!r} cannot act on a part {part!r} of them"
        raise ValueError(f"{fault}; leave out .on({part!r}), in a configuration its key `part`.")
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
    if hasattr(inputs, "_fields"):
        return type(inputs)(*parts.values())
    return parts if isinstance(inputs, Mapping) else type(inputs)(parts.values())


def outputs_of(found: Any) -> Tensor:
    """The outputs in what a network returns: the tensor, ``.logits``, ``["logits"]``, or the first one."""
    if isinstance(found, Tensor):
        return found
    logits = getattr(found, "logits", None)
    if isinstance(found, Mapping) and logits is None:
        logits = found.get("logits", next(iter(found.values()), None))
    elif isinstance(found, (tuple, list)) and logits is None:
        logits = next(iter(found), None)
    if not isinstance(logits, Tensor):
        fault = f"The network returns a {type(found).__name__} in which no outputs are found"
        remedy = "return a tensor, a tuple whose first is one, or something with .logits"
        raise NetworkError(f"{fault}; {remedy}.")
    return logits


def has_logits(found: Any) -> bool:
    """Whether what a network returned names its outputs."""
    return isinstance(_named(found, "logits"), Tensor)


def _named(found: Any, name: str) -> Any:
    return found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)


def loss_of(found: Any, rows: int) -> Tensor:
    """The loss in what a network returns for so many rows, a scalar or ``[rows]``: the tensor, ``.loss`` or
    ``["loss"]``; of a tuple its only scalar, or else its only tensor ``[rows]``."""
    loss = found if isinstance(found, Tensor) else _named(found, "loss")
    if loss is None and isinstance(found, (tuple, list)):
        real = [part for part in found if isinstance(part, Tensor) and part.is_floating_point()]
        scalars = [part for part in real if not part.ndim]
        scalars = scalars or [part for part in real if part.numel() == 1 < rows]
        likely = scalars or [part for part in real if part.shape == (rows,)] or real
        if len(likely) > 1:
            shapes = ", ".join(str(list(part.shape)) for part in real)
            raise NetworkError(
                f"The network returns a {type(found).__name__} of tensors {shapes} for {rows} rows, and it "
                f"is not clear which is the loss; return {{'loss': ..., 'logits': ...}}."
            )
        loss = likely[0] if likely else None
    if not isinstance(loss, Tensor):
        raise NetworkError(
            f"The network returns a {type(found).__name__} without a loss; return it as .loss, ['loss'] or "
            f"the only scalar of a tuple, or choose another likelihood than from_model."
        )
    if loss.shape == (rows,):
        return loss
    if loss.numel() == 1:
        return loss.reshape(())
    remedy = "return their mean, or one number for each row"
    raise NetworkError(f"The network returns a loss {list(loss.shape)} for {rows} rows; {remedy}.")
