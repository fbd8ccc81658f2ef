"""What layers do in a pass that could not be reproduced, or that would carry data from client to client."""

import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedpart.checks import NetworkError
from fedpart.trees import version_of


class Unstable(NetworkError):
    """A pass that returns other numbers when it is computed again, of which the cause is not known."""


@contextmanager
def watched(model: nn.Module, again: Callable[[], bool]) -> Iterator[None]:
    """Look at one pass; it costs more than others.

    A ValueError names the innermost layer that draws from a generator of the process's own, changes one of
    its buffers, or uses ``torch.utils.checkpoint``. ``again`` computes further passes and says whether they
    return the same; it is asked where a generator has moved, which another thread may have done. Of
    ``model``, as a task wraps it, the first part of a layer's name is not the user's."""

    def called(frame: Any, event: str, function: Any) -> None:
        # Other threads draw from Python's generator too: its state would not tell whose draw it was.
        drawn = event == "c_call" and function in _PYTHONS
        if event == "call":
            code = frame.f_code
            if (refused := _REFUSED.get(id(code))) is not None:
                raise NetworkError(f"{_named(model, _computing(model, frame))} {refused}")
            drawn = code is _GAUSS and frame.f_locals.get("self") is _PYTHONS_OWN
        if drawn:
            raise _draws(model, _computing(model, frame), "Python's random module")

    buffers = [(layer, name, tensor, version_of(tensor)) for layer, name, tensor in _buffers(model)]
    unstable: Unstable | None = None
    before, profile = states(), sys.getprofile()
    sys.setprofile(called)
    try:
        yield
    except Unstable as error:  # a generator that has moved may be the cause
        unstable = error
    finally:
        _restore(profile)
    if states() != before:
        _refuse_moves(model, again)
    if unstable is not None:
        raise unstable
    for layer, name, tensor, version in buffers:
        if _changed(tensor, version, layer._buffers.get(name)):
            path = _name(model, layer)
            rest = (
                f"call module.get_submodule({path!r}).eval() if it leaves it alone then, or " if path else ""
            )
            raise NetworkError(
                f"{_named(model, layer)} changes its buffer {name!r} in forward(), which would carry numbers "
                f"from one client to the next; {rest}compute without changing it, as with a constant: "
                f"self.{name} = nn.Parameter({name}, requires_grad=False)."
            )


def _refuse_moves(model: nn.Module, again: Callable[[], bool]) -> None:
    """Refuse a network whose layers move a generator, unless it is another thread that does."""
    moved: list[tuple[nn.Module, str]] = []
    within: list[list[Any]] = []  # states before the layers that are being computed, the innermost last

    def enter(_layer: nn.Module, _inputs: Any) -> None:
        within.append(states())

    def leave(layer: nn.Module, _inputs: Any, _output: Any) -> None:
        for what, now, then in zip(_GENERATORS, states(), within.pop(), strict=True):
            if now != then:
                moved.append((layer, what))

    hooks = [layer.register_forward_pre_hook(enter, prepend=True) for layer in model.modules()]
    hooks += [layer.register_forward_hook(leave, always_call=True) for layer in model.modules()]
    try:
        alike = again()
    except Unstable:
        alike = False
    finally:
        for hook in hooks:
            hook.remove()
    if threading.active_count() == 1 or not alike:
        raise _draws(model, *(moved or [(model, "a global generator")])[0])


def _draws(model: nn.Module, layer: nn.Module, what: str) -> NetworkError:
    return NetworkError(
        f"{_named(model, layer)} draws from {what}, so that equal seeds would give different weights; "
        f"draw with torch.rand(()) or fedpart.uniform in its forward()."
    )


def _computing(model: nn.Module, frame: Any) -> nn.Module:
    """The innermost layer in whose forward() a frame is."""
    while frame is not None:
        code = frame.f_code
        layer = frame.f_locals.get(code.co_varnames[0]) if code.co_name == "forward" else None
        if isinstance(layer, nn.Module):
            return layer
        frame = frame.f_back
    return model


@contextmanager
def unwatched() -> Iterator[None]:
    """Within this context Python calls no profile function, which would take most of the time."""
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        _restore(profile)


def _name(model: nn.Module, layer: nn.Module) -> str:
    names = {id(part): name for name, part in model.named_modules()}
    return str(names.get(id(layer), "").partition(".")[2])


def _named(model: nn.Module, layer: nn.Module) -> str:
    return f"{type(layer).__name__} at {_name(model, layer) or 'the top level'!r}"


def _buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    for layer in model.modules():
        for name, tensor in layer._buffers.items():
            if tensor is not None:
                yield layer, name, tensor


def _changed(before: Tensor, version: int, after: Tensor | None) -> bool:
    """Whether a buffer has other numbers; a cache that is made anew has the same, or it grows."""
    if after is None or after is before:
        return version_of(before) != version
    return after.shape == before.shape and not torch.equal(after, before)


def _restore(profile: Any) -> None:
    """Set a profile function again; in Python 3.11 that of cProfile is its object, and no function."""
    sys.setprofile(None)
    if hasattr(profile, "enable"):
        profile.enable()
    else:
        sys.setprofile(profile)


def _numpys_state() -> tuple[bytes, Any]:
    _, words, *rest = cast(tuple[Any, ...], np.random.get_state())
    return words.tobytes(), rest


_REFUSED = {
    id(inspect.unwrap(checkpoint).__code__): "computes with torch.utils.checkpoint, which would take other "
    "weights when it computes again for the gradient; call model.gradient_checkpointing_disable(), or leave "
    "torch.utils.checkpoint out.",
    id(
        inspect.unwrap(torch.manual_seed).__code__
    ): "seeds torch's generator in forward(), which its draws do "
    "not come from; make constants once in __init__, or leave the seed out.",
}
_PYTHONS = (random.random, random.getrandbits)  # those that the module's other functions draw with
_PYTHONS_OWN = random._inst
_GAUSS = random.Random.gauss.__code__  # every second number of which is one that it has kept
_GENERATORS: dict[str, Callable[[], Any]] = {
    "torch's global generator": lambda: torch.random.get_rng_state().numpy().tobytes(),
    "NumPy's global generator": _numpys_state,
}


def states() -> list[Any]:
    """Where the process's generators are."""
    return [state() for state in _GENERATORS.values()]
