"""One sentence for a configuration that does not fit, in place of many lines; calls with its options."""

import inspect
import json
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Union, get_args, get_origin

import click
from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fedpart.registry import Registry, initials, nearest
from fedpart.training.settings import Settings
from simulations.config.gone import GONE
from simulations.config.keys import Section, keys_of


def named(known: Mapping[str, Any], kind: str = "name") -> Any:
    """A text that must be one of the known names, or ``package.module:attribute`` that can be imported."""
    registry: Registry[Any] = known if isinstance(known, Registry) else Registry(kind, known)

    def check(name: str) -> str:
        registry.resolve(name)
        return name

    return Annotated[str, AfterValidator(check)]


def typed() -> str:
    """The command that was typed, for messages."""
    context = click.get_current_context(silent=True)
    return "this command" if context is None else f"fedpart {context.info_name}"


def check_options(
    function: Callable[..., Any], options: Mapping[str, Any], what: str, given: Collection[str] = ()
) -> None:
    """Refuse keyword arguments that ``function`` does not take, or is ``given`` by others."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # it does not tell
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = parameters.keys() - set(given)
    for option in options:
        if option not in known:
            raise ValueError(f"{what} has no option {option!r}: {nearest(option, known)}")


def sentence(error: ValidationError, model: type) -> str:
    """The first problem of a validation, unknown keys before anything else, as one sentence."""
    problems = error.errors(include_url=False)
    if unknown := [p for p in problems if p["type"] in ("extra_forbidden", "unexpected_keyword_argument")]:
        *parents, key = unknown[0]["loc"]
        shown = _locate(model, tuple(parents))[0]
        path = f"{shown}.{key}" if shown else str(key)
        place = ".".join(part for part in shown.split(".") if not part.isdigit())
        if (gone := GONE.get(f"{place}.{key}" if place else str(key))) is not None:
            advice = f"{gone[1]}."
        elif elsewhere := places(str(key), model):  # a key of that very name in another section
            advice = f"did you mean {' or '.join(map(repr, elsewhere))}?"
        else:
            known = (path.rpartition(".") for path in _paths(model))
            beside = [name for parent, _, name in known if parent == place]
            meant = [path for path in _paths(model) if initials(path.rpartition(".")[2]) == key != key[:1]]
            advice = f"did you mean {' or '.join(map(repr, meant))}?" if meant else nearest(str(key), beside)
        return f"unknown key {path!r}: {advice}"
    first = problems[0]
    path, meaning = _locate(model, first["loc"])
    same = [p for p in problems if _locate(model, p["loc"])[0] == path]
    reasons = list(dict.fromkeys(reason_of(p) for p in same))
    if not path:
        return f"{reasons[0].rstrip('.')}."
    if first["type"] == "missing":
        return f"{path} is missing."
    if first["type"] == "invalid_key":  # YAML has keys that are no text
        return f"the key {first['loc'][-1]!r} is no name of a setting; write one, such as rounds."
    if first["type"] == "value_error":
        return f"{path}: {reasons[0].rstrip('.')}{'' if reasons[0].endswith('?') else '.'}"
    value = repr(first["input"])
    shown = value if len(value) <= 60 else value[:57] + "..."
    return f"{path} cannot be {shown}; it should be {' or '.join(reasons)} ({meaning})."


def truths_for_numbers(data: Any, checked: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Keys whose values are true or false in the data, but were taken for the numbers 1 and 0; the value."""
    if isinstance(data, bool) and type(checked) in (int, float):
        yield key, str(data).lower()
    elif isinstance(data, Mapping) and isinstance(checked, Mapping):
        for name, value in data.items():
            if isinstance(name, bool) and not any(other is name for other in checked):
                yield f"a key of {key}", str(name).lower()
            yield from truths_for_numbers(value, checked.get(name), f"{key}.{name}" if key else str(name))
    elif isinstance(data, (list, tuple)) and isinstance(checked, (list, tuple)):
        for value, number in zip(data, checked, strict=False):
            yield from truths_for_numbers(value, number, key)


def reason_of(problem: Any) -> str:
    """pydantic's message without its stock phrases; of value errors, our own message."""
    if problem["type"] in ("model_type", "dict_type", "model_attributes_type", "dataclass_type"):
        return "a section with keys of its own"
    if problem["type"] in ("tuple_type", "list_type"):
        return "a list"
    if problem["type"] == "too_short":
        return f"a list of at least {problem['ctx']['min_length']}"
    if problem["type"] == "int_parsing_size":
        return "a smaller whole number"
    text = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    return text.partition(", unable to parse")[0]


def places(key: str, section: type) -> list[str]:
    """The keys of that name, in the section and those within it, as ``server.learning_rate``."""
    return [path for path in _paths(section) if path.rpartition(".")[2] == key]


def _locate(section: type, location: tuple[str | int, ...]) -> tuple[str, str]:
    """The part of pydantic's location that is a key of the file, and that key's meaning."""
    paths, path, shown, meaning = _paths(section), "", [], ""
    for part in location:
        if isinstance(part, int):
            shown.append(str(part))
        elif path + part in paths:
            shown.append(part)
            meaning = paths[path + part].description or ""
            path += f"{part}."
    return ".".join(shown), meaning


def _paths(section: type, prefix: str = "") -> dict[str, FieldInfo]:
    """All keys of a section and of those within it, as ``server.learning_rate``."""
    paths = {}
    for name, field in keys_of(section).items():
        paths[prefix + name] = field
        for inner in _sections(field.annotation):
            paths |= _paths(inner, f"{prefix}{name}.")
    return paths


def _sections(annotation: Any) -> list[type]:
    if get_origin(annotation) in (Union, types.UnionType, list, tuple):
        return [inner for argument in get_args(annotation) for inner in _sections(argument)]
    known = isinstance(annotation, type) and issubclass(annotation, (Section, Settings))
    return [annotation] if known else []


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def built(builder: Callable[..., Any], options: Mapping[str, Any], what: str, key: str, **given: Any) -> Any:
    """What ``builder(**given, **options)`` returns."""
    check_options(builder, given, what)
    check_options(builder, options, f"{key}: {what}", given)
    check_types(builder, options, what, key)
    check_needed(builder, options, what, key, given)
    try:
        return builder(**given, **options)
    except TypeError as error:
        raise ValueError(f"T{what[1:]} cannot be made: {str(error).rstrip('.')}; check {key}.") from error


_SAMPLES = {"a list": "[...]", "a valid string": "NAME", "a valid integer": "1", "a valid number": "0.5"}


def check_needed(
    builder: Callable[..., Any], options: Mapping[str, Any], what: str, key: str, given: Collection[str]
) -> None:
    """Refuse options without one that ``builder`` needs; what it means is what the docstring says of it."""
    for name, parameter in _parameters(builder).items():
        needed = parameter.default is parameter.empty and parameter.kind in _NAMED
        if needed and name not in options and name not in given:
            said = re.search(rf"^ +{name}: (.+?)[.;]?$", builder.__doc__ or "", re.MULTILINE)
            kind = misfit(parameter, None) or "of any type"
            meaning = said[1].replace("``", "") if said else kind
            example = f"{key.rpartition('.')[2]}: {{{name}: {_SAMPLES.get(kind, '...')}}}"
            remedy = f"set it, for instance {example}"
            raise ValueError(f"{key}.{name} is missing, and {what} needs it ({meaning}); {remedy}.")


def check_types(
    builder: Callable[..., Any], options: Mapping[str, Any], what: str, key: str, names: bool = False
) -> None:
    """Refuse options of other types than ``builder`` has; ``names``: numbers may stand for texts."""
    for name, parameter in _parameters(builder).items():
        value = options.get(name, parameter.default)
        if value is parameter.default or (wanted := misfit(parameter, value)) is None:
            continue
        if not names or isinstance(value, (str, NoneType)) or misfit(parameter, str(value)):
            raise ValueError(f"{key}.{name} cannot be {value!r}; for {what} it should be {wanted}.")


def check_shape(builder: Callable[..., Any], shape: Any, what: str) -> None:
    """Refuse inputs of another kind than ``builder`` declares to take as its ``input_shape``."""
    parameter = _parameters(builder).get("input_shape")
    if parameter is not None and misfit(parameter, shape):
        raise ValueError(f"T{what[1:]} takes inputs of one shape, not {shape} as data have; choose another.")


def misfit(parameter: inspect.Parameter, value: Any) -> str | None:
    """What the value should be by the parameter's type; None if it is that, or nobody can tell."""
    if parameter.annotation is parameter.empty:
        return None
    try:
        TypeAdapter(parameter.annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        reasons = [reason_of(problem) for problem in error.errors(include_url=False)]
        return " or ".join(dict.fromkeys(reasons))
    except Exception:  # a type that pydantic does not know, or a value that is no plain data
        return None
    return None


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function, eval_str=True).parameters
    except Exception:  # it does not tell, or its annotations are of names that are not there
        return {}
