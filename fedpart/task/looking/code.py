"""What the code of functions may do, read from it without a run."""

import builtins
import dis
import math
import sys
from collections.abc import Iterable
from functools import cached_property, lru_cache, partialmethod
from itertools import pairwise
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

_STORES = {"STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"}
_COMPUTING = set[str]().union(*map(dir, (torch, Tensor, nn, functional, math)))
_HARMLESS = {
    *("abs", "all", "any", "bool", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min"),
    *("object", "print", "range", "reversed", "round", "sum", "super", "tuple", "zip", "__class__"),
}
_PAST_VERSIONS = {
    *("data", "numpy", "asarray", "array", "from_numpy", "from_dlpack", "frombuffer", "memoryview"),
    *("untyped_storage", "storage", "data_ptr", "setattr", "getattr", "vars", "__dict__", "exec", "eval"),
    *("__array__", "__array_interface__"),
}

_WRAPPERS = {
    MethodType: "__func__",
    staticmethod: "__func__",
    classmethod: "__func__",
    property: "fget",
    cached_property: "func",
    partialmethod: "func",
}

_CHANGING = {  # methods of layers and containers that change them
    *("append", "extend", "insert", "pop", "popitem", "update", "setdefault", "move_to_end", "reverse"),
    *("clear", "add_module", "register_module", "register_buffer", "register_parameter", "set_submodule"),
    *("apply", "train", "eval", "load_state_dict"),
}


class Code(NamedTuple):
    """Of one function and the functions inside it."""

    names: frozenset[str]  # of attributes and globals that it uses
    keeps: bool  # whether it stores anything but local variables
    writes: bool  # whether it may change a tensor in place
    past_versions: bool  # whether it may do so past torch's count of such changes
    outer: frozenset[tuple[str, str]]  # names from around it, each with an attribute of it, or empty


@lru_cache(4096)
def read(code: CodeType) -> Code:
    """What a function may do."""
    inner = [read(part) for part in code.co_consts if isinstance(part, CodeType)]
    names = frozenset(code.co_names).union(*(part.names for part in inner))
    instructions = [*dis.get_instructions(code)]
    keeps = any(step.opname in _STORES for step in instructions) or bool(names & _CHANGING)
    in_place = any(step.opname == "BINARY_OP" and step.argrepr.endswith("=") for step in instructions)
    arguments = {word for part in code.co_consts if isinstance(part, tuple) for word in part}
    past = bool(names & _PAST_VERSIONS)
    writes = past or in_place or keeps or bool(arguments & {"out", "inplace"})
    in_words = (name for name in names if name.endswith("_") and not name.endswith("__"))
    outer = {
        (step.argval, after.argval if "ATTR" in after.opname or "METHOD" in after.opname else "")
        for step, after in pairwise(instructions)
        if step.opname in ("LOAD_DEREF", "LOAD_GLOBAL")
    }
    writes = writes or any(in_words) or any(name.startswith(("__i", "__setitem__")) for name in names)
    return Code(
        names,
        keeps or any(part.keeps for part in inner),
        writes or any(part.writes for part in inner),
        past or any(part.past_versions for part in inner),
        frozenset(outer).union(*(part.outer for part in inner)),
    )


def plain_function(function: Any) -> FunctionType | None:
    """A function, or the one of which a decorator has made something else."""
    for wrapper, held in _WRAPPERS.items():
        if isinstance(function, wrapper):
            function = getattr(function, held)
    if not isinstance(function, FunctionType):
        function = getattr(function, "__wrapped__", None) if callable(function) else None
    return function if isinstance(function, FunctionType) else None


@lru_cache(4096)
def is_of_user(module: str | None) -> bool:
    """Whether neither torch, Python nor the library keeps something there."""
    top = (module or "").partition(".")[0]
    return top not in ("torch", "torchvision", "fedpart", "numpy") and top not in sys.stdlib_module_names


@lru_cache(4096)
def is_installed(module: str | None) -> bool:
    """Whether a module is a part of an installed package, and not of what the user works on."""
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def computes(names: Iterable[str]) -> bool:
    """Whether all of them are known to compute, and to keep nothing."""
    return all(name in _HARMLESS or (name in _COMPUTING and not hasattr(builtins, name)) for name in names)


def methods_of(kind: type) -> list[tuple[str, Any]]:
    """A class's own, by name."""
    return [(key, value) for key, value in vars(kind).items() if plain_function(value)]


methods_of_library = lru_cache(4096)(methods_of)  # which nobody replaces


def package_of(value: Any) -> str:
    """Of a class or a function: the package that it is from."""
    return str(getattr(value, "__module__", None) or "").partition(".")[0]
