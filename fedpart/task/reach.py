"""What a network reaches that may keep numbers from one pass to the next, and how to put it back."""

import itertools
import operator
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedpart.trees import version_of

Place = tuple[str, ...]  # a layer, the name of what it reaches, and the way within that
OF_TORCH = frozenset(nn.Module().__dict__) | {"_flat_weights"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_STATES: dict[type, Callable[[Any], str]] = {
    torch.Generator: lambda rng: str(rng.get_state().tolist()),
    np.random.Generator: lambda rng: str(rng.bit_generator.state),
    np.random.RandomState: lambda rng: str(rng.get_state(legacy=False)),
    random.Random: lambda rng: str(rng.getstate()),
}
_CALLS = itertools.count()
_DEPTH = 3  # of containers and objects in an attribute
_MANY = 1000  # parts of a container, which are then told apart by what they are and not by what they hold
_MISSING = object()


class Drawn(NamedTuple):
    """A generator's state."""

    state: str


class Numbers(NamedTuple):
    """A tensor, or an array: which one, how often it was written to, and what it holds."""

    identity: int
    version: int
    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbers) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:2])


class Reach:
    """The attributes of layers at one moment, and what their functions use: closures, defaults, global names.

    Args:
        layers: of a network, by name.

    Attributes:
        values: what can be compared, by place.
        of_user: whether a class or a function among them is neither torch's nor the library's.
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self.values: dict[Place, Any] = {}
        self.of_user = False
        self._back: list[Callable[[], None]] = []
        self._seen = set(map(id, layers.values()))
        for name, layer in layers.items():
            attributes = vars(layer)
            self._back.append(partial(_refill, attributes, dict(attributes)))
            for key, value in [*attributes.items()]:
                if key in OF_TORCH:
                    continue
                if type(value) in _PLAIN:
                    self.values[name, key] = value
                else:
                    self._value((name, key), value, _DEPTH)
            for kind in type(layer).__mro__:
                self._class(name, kind)
            self._function((name, "forward"), type(layer).forward, 2)
            for hook in (*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()):
                self._function((name, getattr(hook, "__name__", "a hook")), hook, 2)

    def restore(self) -> None:
        """Have containers, attributes and names hold again what they held; numbers in tensors stay."""
        for back in self._back:
            back()

    def _value(self, place: Place, value: Any, depth: int) -> None:
        state = next((state for kind, state in _STATES.items() if isinstance(value, kind)), None)
        if state is not None:
            self.values[place] = Drawn(state(value))
        elif isinstance(value, Tensor):
            self.values[place] = Numbers(id(value), version_of(value), value)
        elif isinstance(value, np.ndarray):
            self.values[place] = Numbers(id(value), hash(value.tobytes()), value)
        elif isinstance(value, Iterator):  # how far it is cannot be seen: another pass tells
            self.values[place] = Numbers(next(_CALLS), 0, None)
        elif isinstance(value, _PLAIN):
            self.values[place] = value
        elif isinstance(value, (FunctionType, MethodType, partial)):
            self._function(place, value, min(depth, 1))
        elif depth > 0 and id(value) not in self._seen:
            self._seen.add(id(value))
            self._container(place, value, depth - 1)

    def _container(self, place: Place, value: Any, depth: int) -> None:
        if isinstance(value, (dict, list, set, deque)):
            self._back.append(partial(_refill, value, value.copy()))
        if isinstance(value, dict):
            parts = {str(key): part for key, part in value.items()}
        elif isinstance(value, (list, tuple, deque)):
            parts = {str(index): part for index, part in enumerate(value)}
        elif isinstance(value, (set, frozenset)):
            self.values[place] = len(value)
            return
        elif isinstance(value, (type, ModuleType)):
            return
        else:
            parts = dict(getattr(value, "__dict__", {}))
            if parts:
                self._back.append(partial(_refill, vars(value), dict(parts)))
            if isinstance(value, nn.Module):  # which its owner has not registered
                kept = {key: part for key, part in parts.items() if key not in OF_TORCH}
                parts = {name: layer for name, layer in value._modules.items() if layer is not None} | kept
                self._function((*place, "forward"), type(value).forward, 1)
            for kind in type(value).__mro__:
                for key in _names(getattr(kind, "__slots__", ())):
                    with suppress(AttributeError):
                        parts[key] = getattr(value, key)
        if len(parts) > _MANY:
            self.values[place] = hash(tuple(map(id, parts.values())))
            return
        for key, part in parts.items():
            self._value((*place, key), part, depth)

    def _class(self, name: str, kind: type) -> None:
        if id(kind) in self._seen or not _of_user(kind.__module__):
            return
        self.of_user = True
        self._seen.add(id(kind))
        held = {key: value for key, value in vars(kind).items() if _is_datum(key, value)}
        self._back.append(partial(_reset, kind, held))
        for key, value in held.items():
            if (name, key) not in self.values:  # that of a class before it in the order of inheritance
                self._value((name, key), value, _DEPTH)

    def _function(self, place: Place, function: Any, depth: int) -> None:
        if isinstance(function, partial):
            self._value((*place, "arguments"), (function.args, function.keywords), 2)
            function = function.func
        if isinstance(function, MethodType):
            self._value((*place, "self"), function.__self__, 2)
            function = function.__func__
        code = getattr(function, "__code__", None)
        if depth < 0 or code is None or id(function) in self._seen or not _of_user(function.__module__):
            return
        self.of_user = True
        self._seen.add(id(function))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty one
                self._back.append(partial(setattr, cell, "cell_contents", cell.cell_contents))
                self._value((*place, name), cell.cell_contents, max(depth, 2))
        for defaults in (function.__defaults__, function.__kwdefaults__, vars(function)):
            if defaults:
                self._value((*place, "defaults"), defaults, 3)
        names, module = _global_names(code), function.__globals__
        for name in sorted(names):
            value = module.get(name, _MISSING)
            if isinstance(value, FunctionType) and value.__module__ == function.__module__:
                self._function((place[0], name), value, depth - 1)
            elif isinstance(value, type):
                self._class(place[0], value)
            elif value is not _MISSING and (
                isinstance(value, (Tensor, np.ndarray, dict, list, set, deque, *_PLAIN, *_STATES))
                or type(value).__module__ == function.__module__
            ):
                self._value((place[0], name), value, 3)
        before = {name: module[name] for name in names if name in module}
        self._back.append(partial(_rename, module, names, before))


def _of_user(module: str | None) -> bool:
    """Whether neither torch nor the library keeps something there."""
    return (module or "").partition(".")[0] not in ("torch", "torchvision", "fedpart", "builtins")


def _is_datum(key: str, value: Any) -> bool:
    """Whether a class holds a value of that name, and no method."""
    return not key.startswith("__") and not hasattr(value, "__get__") and not isinstance(value, type)


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _global_names(code: CodeType) -> set[str]:
    """Those that a function and the functions in it use."""
    inner = [_global_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def _refill(container: Any, before: Any) -> None:
    same = isinstance(container, dict) and container.keys() == before.keys()
    parts = (container.values(), before.values()) if same else (container, before)
    if len(container) == len(before) and all(map(operator.is_, *parts)):
        return
    container.clear()
    container.extend(before) if isinstance(container, (list, deque)) else container.update(before)


def _reset(kind: type, before: Mapping[str, Any]) -> None:
    for key, value in [*vars(kind).items()]:
        if key not in before and _is_datum(key, value):
            delattr(kind, key)
    for key, value in before.items():
        if vars(kind).get(key, _MISSING) is not value:
            setattr(kind, key, value)


def _rename(held: dict[str, Any], names: set[str], before: Mapping[str, Any]) -> None:
    for name in names & held.keys() - before.keys():
        del held[name]
    held.update(before)
