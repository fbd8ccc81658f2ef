"""What a network reaches that may keep numbers from one pass to the next, and how to put it back."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import _lru_cache_wrapper, cached_property, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.modules.dropout import _DropoutNd

from fedpart.task.looking import code, values

Place = tuple[str, ...]  # a layer, the name of what it reaches, and the way within that
OF_TORCH = frozenset(nn.Module().__dict__) - {"training"} | {"_flat_weights"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_COMPUTING = ("torch", "torchvision", "math", "fedpart")
_DEPTH = 6  # of containers and objects in an attribute
_MANY = 1000  # parts of a container that are looked into; the others are told apart by what they are
_FUNCTIONS = 10_000  # whose code is read
_FURTHER = 64  # parts of a container that has grown


class Reach:
    """The attributes of layers at one moment, and what their functions use: closures, defaults, global names.
    Functions are those that a layer's ``forward`` or a hook names, and those that they name."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self.values: dict[Place, Any] = {}  # what can be compared
        self.names = {"forward", "__call__", "backward", "setup_context"}  # that functions use
        # Whether the user's functions may keep something where no value is compared, write into their inputs,
        # do so past torch's count of changes, and act in the backward pass.
        self.keeps = self.writes = self.past_versions = self.acts_backward = False
        self._puts: dict[Place, Callable[[Any], None]] = {}
        self._containers: dict[Place, Any] = {}
        self._back: list[Callable[[], None]] = []
        self._seen = set(map(id, layers.values()))
        self._functions: list[tuple[Place, Any]] = []  # whose code is read if somebody names it
        self._read, self._far = 0, set[Place]()
        self.caches: list[Any] = []
        self.switched: list[tuple[str, nn.Module]] = []  # layers whose mode a function reads, by its names
        self._known, self._odd = set[str](), set[str]()  # names of what layers compute with, and of the rest
        for name, layer in layers.items():
            self._layer(name, layer)
        for hook in (hook for hooks in _HOOKS for hook in getattr(modules, f"_global{hooks}").values()):
            self._hook("", hook)
        while named := [function for function in self._functions if function[0][1] in self.names]:
            self._functions = [function for function in self._functions if function[0][1] not in self.names]
            for place, function in named:
                self._function(place, function)
        if self.writes and any(isinstance(held, values.Numbers) for held in self.values.values()):
            self.keeps = True  # into tensors that are no buffers

    def restore(self) -> None:
        """Have containers, attributes and names hold again what they held; numbers in tensors stay."""
        for back in self._back:
            back()

    def is_named(self, place: Place) -> bool:
        """Whether a function of the user's uses what is there, and not only one of an installed package."""
        return place not in self._far and not self.names.isdisjoint(place[1:])

    @contextmanager
    def disturbed(self, places: Iterable[Place], number: int) -> Iterator[None]:
        """Within this context tensors there hold ``number``, and containers that they are new in hold more:
        who computes the same then does not read them."""
        undo: list[Callable[[], None]] = []
        for place in places:
            held = getattr(self.values.get(place), "held", None)
            if place in self._puts and isinstance(held, (Tensor, np.ndarray)):
                undo.append(partial(self._puts[place], held))
                self._puts[place](values.filled(held, number))
            container = self._containers.get(place[:-1])
            if isinstance(container, dict) and container:
                undo.append(partial(values.refill, container, dict(container)))
                container.update({object(): [*container.values()][-1] for _ in range(_FURTHER)})
            elif isinstance(container, (list, deque)) and container:
                undo.append(partial(values.refill, container, [*container]))
                container.extend([container[-1]] * _FURTHER)
        try:
            yield
        finally:
            for back in reversed(undo):
                back()

    def _layer(self, name: str, layer: nn.Module) -> None:
        attributes = vars(layer)
        self._back.append(partial(values.refill, attributes, dict(attributes)))
        self._known.update(layer._parameters, layer._buffers, layer._modules)
        self.values[name, "layers"] = tuple(map(id, layer._modules.values()))
        for key, value in [*attributes.items()]:
            if key in OF_TORCH:
                continue
            (self._known if isinstance(value, (*values.PLAIN, FunctionType, Tensor)) else self._odd).add(key)
            if type(value) in values.PLAIN:
                self.values[name, key] = value
            else:
                self._value((name, key), value, _DEPTH, partial(attributes.__setitem__, key))
        self._class(name, type(layer))
        self.acts_backward |= bool(layer._backward_hooks or layer._backward_pre_hooks)
        for hooks in _HOOKS:
            for hook in getattr(layer, hooks).values():
                self._hook(name, hook)

    def _hook(self, layer: str, hook: Any) -> None:
        key = getattr(hook, "__name__", "a hook")
        self.names.add(key)  # which torch calls, and no code names
        self._value((layer, key), hook, 2)

    def _value(self, place: Place, value: Any, depth: int, put: Callable[[Any], None] | None = None) -> None:
        if isinstance(value, values.PLAIN):
            self.values[place] = value
        elif (held := values.comparable(value)) is not None:
            self.values[place] = held
            if isinstance(value, set):
                self._back.append(partial(values.refill, value, value.copy()))
            if put is not None and isinstance(held, values.Numbers):
                self._puts[place] = put
        elif isinstance(value, ContextVar):
            self._value((*place, "value"), value.get(None), depth - 1)
        elif isinstance(value, (FunctionType, MethodType, partial, _lru_cache_wrapper)):
            self._functions.append((place, value))
        elif isinstance(value, type):
            self._class(place[0], value)
        elif isinstance(value, BuiltinFunctionType):
            if isinstance(value.__self__, type):  # Function.apply
                self._class(place[0], value.__self__)
        elif isinstance(value, ModuleType) or type(value).__module__ == "contextlib":
            return
        elif depth > 0 and id(value) not in self._seen:
            self._seen.add(id(value))
            self._container(place, value, depth - 1)

    def _container(self, place: Place, value: Any, depth: int) -> None:
        try:
            parts = self._parts(value)
        except Exception:  # somebody's own container
            self.keeps = True
            return
        if isinstance(value, (Mapping, list, tuple, deque)):
            self._containers[place] = value
            if isinstance(value, Mapping):
                self.values[*place, "order"] = values.Order(tuple(parts))
        elif isinstance(value, nn.Module) or not code.is_installed(type(value).__module__):
            self._class(place[0], type(value))
        if len(parts) > _MANY:
            self.values[place] = hash(tuple(id(part) for part, _ in parts.values()))
        for key, (part, put) in itertools.islice(parts.items(), _MANY):
            self._value((*place, key), part, depth, put)

    def _parts(self, value: Any) -> dict[str, tuple[Any, Callable[[Any], None] | None]]:
        """What a container or an object holds, by name, each with how to put something else there."""
        if isinstance(value, (Mapping, list, tuple, deque)):
            plain = next((kind for kind in (dict, list, deque) if isinstance(value, kind)), None)
            if plain is not None:  # a subclass may copy itself in another way, or not at all
                self._back.append(partial(values.refill, value, plain(value)))
            pairs: Iterable[tuple[Any, Any]] = enumerate(value)
            if isinstance(value, Mapping):
                pairs = [*value.items()]
            put = getattr(value, "__setitem__", None)
            return {str(key): (part, partial(put, key) if put else None) for key, part in pairs}
        if held := dict(getattr(value, "__dict__", {})):
            self._back.append(partial(values.refill, vars(value), dict(held)))
        if isinstance(value, nn.Module):  # which its owner has not registered
            held = {key: part for key, part in held.items() if key not in OF_TORCH}
            held |= {name: layer for name, layer in value._modules.items() if layer is not None}
        for kind in type(value).__mro__:
            slots = getattr(kind, "__slots__", ())
            for key in (slots,) if isinstance(slots, str) else slots:
                with suppress(AttributeError):
                    held[key] = getattr(value, key)
        return {key: (part, partial(setattr, value, key)) for key, part in held.items()}

    def _class(self, name: str, kind: type) -> None:
        """Note a class's methods, and what it holds if it is the user's."""
        for base in kind.__mro__:
            if id(base) in self._seen or base in (nn.Module, object):
                continue
            self._seen.add(id(base))
            users = code.is_of_user(base.__module__)
            methods = code.methods_of(base) if users else code.methods_of_library(base)
            self._known.update(key for key, _ in methods)
            self._functions += [((name, key), method) for key, method in methods]
            if not users:
                continue
            self.acts_backward |= issubclass(base, torch.autograd.Function)
            held = {key: value for key, value in vars(base).items() if values.is_datum(key, value)}
            self._back.append(partial(values.reset, base, held))
            for key, value in held.items():
                if (name, key) not in self.values:  # that of a class before it in the order of inheritance
                    depth = 1 if code.is_installed(base.__module__) else _DEPTH
                    self._value((name, key), value, depth, partial(setattr, base, key))

    def _function(self, place: Place, function: Any) -> None:
        if isinstance(function, partial):
            self._value((*place, "arguments"), (function.args, function.keywords), 2)
            function = function.func
        if isinstance(function, MethodType):
            self._value((*place, "self"), function.__self__, 2)
        self.keeps |= isinstance(function, (_lru_cache_wrapper, cached_property))
        if isinstance(function, _lru_cache_wrapper):
            self.caches.append(function)
        function = code.plain_function(function)
        if function is None or id(function) in self._seen or self._read > _FUNCTIONS:
            self.keeps |= function is None
            return
        self._seen.add(id(function))
        self._read += 1
        said, outer = code.read(function.__code__), function.__code__.co_freevars
        self.names.update(said.names - {"__init__"}, place[1:], outer)
        if not code.is_of_user(function.__module__):
            self.keeps |= code.package_of(function) not in _COMPUTING
            return
        installed = code.is_installed(function.__module__)
        hooks = [name for name in said.names if "hook" in name and "forward" not in name and not installed]
        self.acts_backward |= any("register" in name or "saved" in name for name in hooks)
        self.keeps |= said.keeps
        self.writes |= said.writes
        self.past_versions |= said.past_versions
        for name, cell in zip(outer, function.__closure__ or (), strict=False):
            with suppress(ValueError):  # an empty one
                put = partial(setattr, cell, "cell_contents")
                self._back.append(partial(put, cell.cell_contents))
                self._held((*place, name), cell.cell_contents, put)
                self._layer_of(name, cell.cell_contents, said.outer)
        for kept in ("__defaults__", "__kwdefaults__", "__dict__"):
            if defaults := getattr(function, kept, None):
                self._held((*place, "defaults"), defaults, None)
        names, module = said.names, function.__globals__
        self.keeps |= any(name in self._odd for name in names)
        self.keeps |= not code.computes(names - self._known - module.keys())
        before = {*self.values}
        for name in names & module.keys():
            put, value = partial(module.__setitem__, name), module[name]
            self._layer_of(name, value, said.outer)
            key: Place = (place[0], name)
            key = (*key, "global") if key in self.values else key  # an attribute has the same name
            if not installed:
                self._global(key, value, names, put)
            elif isinstance(value, FunctionType) and value.__module__ == function.__module__:
                self._functions.append((key, value))
            elif isinstance(value, (FunctionType, type, ModuleType)):
                self.keeps |= code.package_of(value) not in _COMPUTING
            else:
                self._held(key, value, put, 1)
        if installed:
            self._far |= self.values.keys() - before
        self._back.append(partial(values.rename, module, names, {n: module[n] for n in names if n in module}))

    def _layer_of(self, name: str, value: Any, uses: Iterable[tuple[str, str]]) -> None:
        """Note a layer of this name if what a function uses of it computes otherwise in training."""
        attributes = {attribute for holder, attribute in uses if holder == name}
        if not attributes or not isinstance(value, nn.Module):
            return
        used = [getattr(value, attribute, None) for attribute in attributes if attribute]
        if "" in attributes and next(value.parameters(), None) is None:  # it is called, or handed on
            used.append(value)
        layers = (layer for part in used if isinstance(part, nn.Module) for layer in part.modules())
        if "training" in attributes or any(isinstance(layer, _DropoutNd) for layer in layers):
            self.switched.append((name, value))

    def _held(self, place: Place, value: Any, put: Callable[[Any], None] | None, depth: int = _DEPTH) -> None:
        """What a function holds; all but plain values and functions may keep what is not compared."""
        library = isinstance(value, BuiltinFunctionType) and code.package_of(value) in _COMPUTING
        library |= code.package_of(type(value)) in _COMPUTING
        self.keeps |= not (library or isinstance(value, (*values.PLAIN, FunctionType, Tensor, nn.Module)))
        self.acts_backward |= type(value).__name__ == "CustomOpDef"  # of torch.library
        self._value(place, value, depth, put)

    def _global(self, place: Place, value: Any, names: Iterable[str], put: Callable[[Any], None]) -> None:
        """What the user's code calls by a global name; of a module, what the code names in it."""
        if isinstance(value, ModuleType):
            inside = vars(value)
            users = code.is_of_user(value.__name__) and not code.is_installed(value.__name__)
            self.keeps |= not users and value.__name__.partition(".")[0] not in _COMPUTING
            for key in [key for key in names if key in inside and inside[key] is not value]:
                if users:
                    self._global((place[0], key), inside[key], (), partial(inside.__setitem__, key))
                elif isinstance(inside[key], MutableMapping):  # os.environ
                    self._value((place[0], key), inside[key], _DEPTH)
        elif isinstance(value, (FunctionType, type)) and code.is_installed(value.__module__):
            self.keeps = True
            if isinstance(value, type) and issubclass(value, torch.autograd.Function):
                self._class(place[0], value)
        elif isinstance(value, (FunctionType, type)):
            self.keeps |= isinstance(value, type) and code.is_of_user(value.__module__)
            self._value(place, value, _DEPTH)
        else:
            self._held(place, value, put, 2 if code.is_installed(type(value).__module__) else _DEPTH)
