"""Calls of what a configuration names, with its options; what does not fit is a sentence about a key."""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simulations.config.messages import check_options, reason_of

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def built(builder: Callable[..., Any], options: Mapping[str, Any], what: str, key: str, **given: Any) -> Any:
    """What ``builder(**given, **options)`` returns."""
    check_options(builder, {**given, **options}, what)
    check_types(builder, options, what, key)
    for name, parameter in _parameters(builder).items():
        needed = parameter.default is parameter.empty and parameter.kind in _NAMED
        if needed and name not in options and name not in given:
            raise ValueError(f"{key}.{name} is missing, and {what} needs it ({_type(parameter)}); set it.")
    try:
        return builder(**given, **options)
    except TypeError as error:
        raise ValueError(f"T{what[1:]} cannot be made: {str(error).rstrip('.')}; check {key}.") from error


def check_types(
    builder: Callable[..., Any], options: Mapping[str, Any], what: str, key: str, names: bool = False
) -> None:
    """Refuse options of other types than ``builder`` declares; see :func:`built`.

    Args:
        names: whether a number or a truth value may stand where a text is declared, as names in YAML do.
    """
    for name, parameter in _parameters(builder).items():
        value = options.get(name, parameter.default)
        if value is parameter.default or (wanted := misfit(parameter, value)) is None:
            continue
        if not names or isinstance(value, str) or misfit(parameter, str(value)):
            raise ValueError(f"{key}.{name} cannot be {value!r}; for {what} it should be {wanted}.")


def check_shape(builder: Callable[..., Any], shape: Any, what: str) -> None:
    """Refuse inputs of another kind than ``builder`` declares to take as its ``input_shape``."""
    parameter = _parameters(builder).get("input_shape")
    if parameter is not None and misfit(parameter, shape):
        raise ValueError(
            f"T{what[1:]} takes inputs of one shape, {_type(parameter)}, but those of the data are {shape}; "
            f"choose another model."
        )


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


def _type(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return "of any type" if annotation is parameter.empty else inspect.formatannotation(annotation)
