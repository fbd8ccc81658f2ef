"""What a network keeps from one pass to the next in plain attributes, which no client may inherit."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedpart.randomness.watching import Unstable
from fedpart.trees import Tree, map_leaves, same_numbers, tensors_in, version_of

_TORCHS = frozenset(nn.Module().__dict__) | {"_flat_weights"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_STATES: dict[type, Callable[[Any], str]] = {
    torch.Generator: lambda rng: str(rng.get_state().tolist()),
    np.random.Generator: lambda rng: str(rng.bit_generator.state),
    np.random.RandomState: lambda rng: str(rng.get_state(legacy=False)),
    random.Random: lambda rng: str(rng.getstate()),
}
_CALLS = itertools.count()
ROUNDING = 1e-4  # by which passes may differ that add in any order, as some operations on a GPU do
_DEPTH = 3  # of containers and objects in an attribute


class _Drawn(NamedTuple):
    """A generator's state."""

    state: str


class _Numbers(NamedTuple):
    """A tensor, or an array: which one, how often it was written to, and what it holds."""

    identity: int
    version: int
    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:2])


class Attributes:
    """The attributes of a network's layers before a pass.

    Args:
        model: as a task wraps it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = dict(model.named_modules())
        self._before = dict(self._values())
        self._raw = {
            name: {key: copy(value) if isinstance(value, (dict, list, set, deque)) else value
                   for key, value in vars(layer).items() if key not in _TORCHS}
            for name, layer in self._layers.items()
        }  # fmt: skip

    def check(self, found: Any, given: tuple[Tree, Tree], again: Callable[[tuple[Tree, Tree]], Any]) -> None:
        """Refuse what a pass has kept if it moves on in the next one, changes it, or tells of its examples.

        A cache does none of these: it is made once, and is the same for all examples of one shape. Tensors
        and containers that are kept for people to look at may differ.

        Args:
            found: what the pass has returned.
            given: its inputs and targets.
            again: computes a pass with the same random numbers.

        Raises:
            ValueError: it names the attribute.
        """
        first = dict(self._values())
        changed = [key for key in first | self._before if first.get(key) != self._before.get(key)]
        for key in changed:
            if isinstance(first.get(key), _Drawn):
                raise self._refusal(key, "draws from a generator of its own,", "draw with torch.rand or "
                                    "fedpart.uniform in forward()")  # fmt: skip
        repeated, second = _repeated(found, given, again), dict(self._values())
        moving = [key for key in first | second if first.get(key) != second.get(key)]
        plain = [key for key in moving if len(key) == 2 and not isinstance(second.get(key), _Numbers)]
        if plain or not _close(found, repeated, 0.0 if changed else ROUNDING):
            if not (plain or moving or changed):
                raise _elsewhere()
            raise self._refused_kept((plain or moving or changed)[0])
        moved = {key[:2] for key in moving}
        still = [key for key in changed if key[:2] not in moved and key in first]
        if not still:
            return
        for name, attribute, *_ in still:
            self._restore(name, attribute)
        try:
            again(map_leaves(_others, given))
        except Exception:  # the network does not take such examples
            again(given)
        other = dict(self._values())
        for key in still:
            if not _alike(first[key], other.get(key)):
                raise self._refused_kept(key)

    def _values(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """What can be compared, by layer, attribute and place in it."""
        for name, layer in self._layers.items():
            for key, value in [*vars(layer).items()]:
                if key not in _TORCHS:
                    yield from _parts((name, key), value, _DEPTH)
            for function in (
                type(layer).forward,
                *layer._forward_pre_hooks.values(),
                *layer._forward_hooks.values(),
            ):
                yield from _reached((name, getattr(function, "__name__", "a hook")), function, 2)

    def _restore(self, name: str, attribute: str) -> None:
        layer, before = self._layers[name], self._raw[name]
        if attribute in before:
            layer.__dict__[attribute] = before[attribute]
        else:
            layer.__dict__.pop(attribute, None)

    def _refused_kept(self, key: tuple[str, ...]) -> ValueError:
        return self._refusal(
            key,
            "is changed in forward(),",
            "compute it anew in each pass, or make it once in __init__; keep a number to look at as a tensor",
        )

    def _refusal(self, key: tuple[str, ...], does: str, way_out: str) -> ValueError:
        path = key[0].partition(".")[2]
        layer = f"{type(self._layers[key[0]]).__name__} at {path or 'the top level'!r}"
        return ValueError(
            f"{key[1]!r} of {layer} {does} which would carry numbers from one client to the next; {way_out}."
        )


def _parts(place: tuple[str, ...], value: Any, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    state = next((state for kind, state in _STATES.items() if isinstance(value, kind)), None)
    if state is not None:
        yield place, _Drawn(state(value))
    elif isinstance(value, Tensor):
        yield place, _Numbers(id(value), version_of(value), value)
    elif isinstance(value, np.ndarray):
        yield place, _Numbers(id(value), hash(value.tobytes()), value)
    elif isinstance(value, Iterator):  # how far it is cannot be seen: another pass tells
        yield place, _Numbers(next(_CALLS), 0, None)
    elif isinstance(value, _PLAIN):
        yield place, value
    elif isinstance(value, (FunctionType, MethodType)):
        yield from _reached(place, value, min(depth, 1))
    elif depth > 0 and isinstance(value, dict):
        for key, part in [*value.items()]:
            yield from _parts((*place, str(key)), part, depth - 1)
    elif depth > 0 and isinstance(value, (list, tuple, deque)):
        for index, part in enumerate(value):
            yield from _parts((*place, str(index)), part, depth - 1)
    elif isinstance(value, (set, frozenset)):
        yield place, len(value)
    elif depth > 0 and hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)):
        for key, part in [*vars(value).items()]:
            yield from _parts((*place, key), part, depth - 1)


def _reached(place: tuple[str, ...], function: Any, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What a function has in its closure, and generators among its module's names."""
    code = getattr(function, "__code__", None)
    if depth < 0 or code is None or (function.__module__ or "").startswith("fedpart."):
        return
    around = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for name, cell in around.items():
        with suppress(ValueError):  # an empty one
            yield from _parts((*place, name), cell.cell_contents, depth - 1)
    for name in code.co_names:
        if isinstance(found := function.__globals__.get(name), tuple(_STATES)):
            yield from _parts((*place, name), found, 0)


def _repeated(found: Any, given: tuple[Tree, Tree], again: Callable[[tuple[Tree, Tree]], Any]) -> Any:
    """The pass again: without gradients, which take memory, unless it then fails or returns other numbers."""
    with suppress(Exception), torch.no_grad():
        if _close(found, repeated := again(given), 0.0):
            return repeated
    return again(given)


def _close(found: Any, repeated: Any, share: float) -> bool:
    """Whether two passes return the same, to a share of their largest number."""
    if share == 0.0 or same_numbers(found, repeated):
        return same_numbers(found, repeated)
    pairs = [*zip(tensors_in(found), tensors_in(repeated), strict=False)]
    return all(
        one.shape == other.shape and bool(((one - other).abs().max() <= share * one.abs().max()).item())
        for one, other in pairs
        if one.is_floating_point() and one.numel()
    )


def _elsewhere() -> Unstable:
    return Unstable(
        "forward() returns other numbers when it computes again with the same weights, inputs and random "
        "numbers, so that clients would depend on their order: it keeps or draws numbers outside of its "
        "layers, in a global variable, a class attribute, a default argument or a generator; give them as "
        "inputs, or draw with torch.rand or fedpart.uniform."
    )


def _others(leaf: Any) -> Any:
    """Other examples of the same shape: the first one in place of all, in other units."""
    if not isinstance(leaf, Tensor):
        return leaf
    same = leaf[:1].expand_as(leaf)
    return same * 0.5 if leaf.is_floating_point() else same.clone()


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, _Numbers) and isinstance(other, _Numbers):
        a, b = torch.as_tensor(one.held), torch.as_tensor(other.held)
        return a.shape == b.shape and torch.equal(a, b)
    return bool(one == other)


def check_memory(module: nn.Module) -> None:
    """Refuse weights that overlap in memory, and arrays that do with a weight: training would part them; and
    weights that have no memory of their own.

    Raises:
        ValueError: it names them.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ValueError(
                f"{repr(name) if name else 'The module'} is compiled by torch.jit, whose weights cannot be "
                f"replaced; hand over the module as it was before."
            )
    for name, weight in module.named_parameters():
        if weight.is_meta:
            raise ValueError(
                f"The weight {name!r} has no values, being on the device meta; build the module on the CPU."
            )
        if weight.layout != torch.strided:
            raise ValueError(
                f"The weight {name!r} is sparse; hold it dense, and make it sparse in forward(), to_sparse()."
            )
        if weight.requires_grad and (weight._backward_hooks or weight._post_accumulate_grad_hooks):
            raise ValueError(
                f"The weight {name!r} has a hook on its gradient, which its copies lose; remove it, and "
                f"compute in forward() what it does: weight * mask + (weight * ~mask).detach()."
            )
    spans = sorted((*_span(weight), name) for name, weight in module.named_parameters() if _spans(weight))
    for (_, end, name), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            raise ValueError(
                f"The weights {name!r}, {other!r} share their memory, but are two parameters, which training "
                f"would part; make them one, as in layer.weight = other.weight."
            )
    for place, value in Attributes(module)._values():
        if isinstance(value, _Numbers) and isinstance(value.held, np.ndarray):
            start = value.held.__array_interface__["data"][0]
            shared = [name for first, end, name in spans if first <= start < end]
            if shared:
                raise ValueError(
                    f"The weight {shared[0]!r} and the array {place[1]!r} share their memory, which training "
                    f"would part; make the array in forward(), of self.NAME."
                )


def _spans(weight: Tensor) -> bool:
    return not is_lazy(weight) and weight.numel() > 0


def _span(weight: Tensor) -> tuple[int, int]:
    """The first byte of a weight, and the one after its last."""
    last = sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    return weight.data_ptr(), weight.data_ptr() + (last + 1) * weight.element_size()
