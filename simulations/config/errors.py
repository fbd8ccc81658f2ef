"""One sentence for a configuration that does not fit, in place of pydantic's many lines."""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedpart.registry import Registry


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` for the nearest known name, with all of them if they are few or none is near."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    near = near or [other for other in known if name == "".join(word[:1] for word in other.split("_"))]
    names = f"known: {', '.join(known) or 'none'}"
    if not near:
        return names
    return f"did you mean {near[0]!r}?" + (f" ({names})" if len(known) <= 8 else "")


def check_name(name: str, known: Registry[Any] | Mapping[str, Any], kind: str = "name") -> str:
    """``name`` itself if it is registered or can be imported.

    Raises:
        ValueError: names the nearest one, as :meth:`Registry.resolve` does.
    """
    registry: Registry[Any] = known if isinstance(known, Registry) else Registry(kind)
    if registry is not known:
        for key, value in known.items():
            registry.register(key)(value)
    registry.resolve(name)
    return name


def check_options(function: Callable[..., Any], options: Mapping[str, Any], what: str) -> None:
    """Refuse keyword arguments that ``function`` does not take.

    Raises:
        ValueError: names the nearest one.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # it does not tell
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            raise ValueError(f"{what} has no option {option!r}; {did_you_mean(option, parameters)}")


def sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem of a validation, unknown keys before anything else, as one sentence."""
    problems = error.errors(include_url=False)
    unknown = [p for p in problems if p["type"] == "extra_forbidden"]
    if unknown:
        *parents, key = unknown[0]["loc"]
        path = ".".join(str(part) for part in (*parents, key))
        near = _nearest_key(str(key), model, parents)
        return f"unknown key {path!r}; {near}{'' if near.endswith('?') else '.'}"
    first = problems[0]
    path, annotation = _locate(model, first["loc"])
    same = [p for p in problems if _locate(model, p["loc"])[0] == path]
    reasons = list(dict.fromkeys(_reason(p) for p in same))
    if not path:
        return f"{reasons[0].rstrip('.')}."
    if first["type"] == "missing":
        return f"{path} is missing."
    if first["type"] == "value_error":
        return f"{path}: {reasons[0].rstrip('.')}."
    value = repr(first["input"])
    shown = value if len(value) <= 60 else value[:57] + "..."
    return f"{path} cannot be {shown}; it should be {' or '.join(reasons)} ({annotation})."


def _reason(problem: Any) -> str:
    """pydantic's message without its stock phrases; of value errors, our own message."""
    if problem["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return "a section with keys of its own"
    if problem["type"] in ("tuple_type", "list_type"):
        return "a list"
    if problem["type"] == "too_short":
        return f"a list of at least {problem['ctx']['min_length']}"
    text = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    return text.partition(", unable to parse")[0]


def knows(model: type[BaseModel], key: str) -> bool:
    """Whether the model, or one of its sections, has a key of that name."""
    return any(path.rpartition(".")[2] == key for path in _paths(model))


def _nearest_key(key: str, model: type[BaseModel], parents: Iterable[str | int]) -> str:
    """The key of that very name in another section, or else the nearest one of the same section."""
    elsewhere = [path for path in _paths(model) if path.rpartition(".")[2] == key]
    if elsewhere:
        return f"did you mean {' or '.join(map(repr, elsewhere))}?"
    return did_you_mean(key, _fields(model, parents))


def _paths(model: type[BaseModel], prefix: str = "") -> list[str]:
    paths = []
    for name, field in model.model_fields.items():
        paths.append(prefix + name)
        for section in _sections(field.annotation):
            paths += _paths(section, f"{prefix}{name}.")
    return paths


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, list, tuple):
        return [found for argument in get_args(annotation) for found in _sections(argument)]
    return []


def _fields(model: type[BaseModel], path: Iterable[str | int]) -> list[str]:
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            found = _sections(model.model_fields[part].annotation)
            model = found[0] if found else model
    return list(model.model_fields)


def _locate(model: type[BaseModel], location: tuple[str | int, ...]) -> tuple[str, str]:
    """The part of pydantic's location that is a key of the file, and that key's meaning."""
    path: list[str] = []
    meaning = ""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            path.append(str(part))
        elif current is not None and part in current.model_fields:
            field = current.model_fields[part]
            path.append(part)
            meaning = field.description or ""
            found = _sections(field.annotation)
            current = found[0] if found else None
    return ".".join(path), meaning
