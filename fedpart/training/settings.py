"""A setting: default, range and meaning, said once for Python and YAML; and those that every run has."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedpart.parameters.partition import Defaults, Scheme, check_proportions

Kind = TypeVar("Kind", bound=type)
Decides = Literal["numbers", "course", "nothing"]
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def setting(
    default: Any = dataclasses.MISSING,
    description: str = "",
    *,
    decides: Decides = "numbers",
    **bounds: float,
) -> Any:
    """A field of a frozen dataclass of settings.

    Args:
        default: the value where none is given; a mapping is copied.
        description: what it is, and its unit: the one text about it.
        decides: ``numbers`` of the result; the ``course`` of a run: its seconds, last digits, and what
            becomes of clients that fail; or ``nothing`` of either. What does not decide numbers may differ
            between server and clients, and when a run is resumed.
        **bounds: ``gt``, ``ge``, ``lt`` and ``le``, which pydantic reads from the metadata as well.
    """
    metadata = {"description": description, "decides": decides, **bounds}
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)  # type: ignore[attr-defined]
    return dataclasses.field(default=default, metadata=metadata)


def documented(kind: Kind) -> Kind:
    """Class decorator: the docstring of a dataclass of settings lists its fields with their descriptions."""
    fields = [f"    {field.name}: {field.metadata['description']}." for field in dataclasses.fields(kind)]
    kind.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__ or ""), "", "Attributes:", *fields])
    return kind


def check_ranges(settings: Any) -> None:
    """Refuse values beyond the bounds of their fields, numbers that are not finite, and unknown choices.

    Args:
        settings: a dataclass whose fields are made by :func:`setting`.

    Raises:
        ValueError: one sentence that names the first such field.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        choices = _choices(settings.__class__).get(field.name, ())
        if choices and value not in choices:
            *others, last = map(str, choices)
            raise ValueError(f"{field.name} is one of {', '.join(others)} or {last}, got {value!r}.")
        if isinstance(value, (int, float)) and not _fits(value, field.metadata):
            raise ValueError(f"{field.name} is {_range(value, field.metadata)}, got {value!r}.")


def deciding(settings: Any) -> dict[str, Any]:
    """The settings that decide the numbers of a run, as plain data by name."""
    plain = dataclasses.asdict(settings)
    return {
        field.name: plain[field.name]
        for field in dataclasses.fields(settings)
        if field.metadata["decides"] == "numbers"
    }


@cache
def _choices(kind: Hashable) -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(kind)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def _fits(value: float, bounds: Mapping[str, Any]) -> bool:
    return (
        math.isfinite(value)
        and bounds.get("gt", -math.inf) < value < bounds.get("lt", math.inf)
        and bounds.get("ge", -math.inf) <= value <= bounds.get("le", math.inf)
    )


def _range(value: float, bounds: Mapping[str, Any]) -> str:
    """The range that ``value`` is not in: ``above 0 and below 0.5``, ``at least 1``."""
    words = [f"{word} {bounds[bound]}" for bound, word in _BOUNDS.items() if bound in bounds]
    return " and ".join(words if math.isfinite(value) else ["finite", *words])


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What federated and centralised runs both have.

    Raises:
        ValueError: a value out of range; one sentence.
    """

    method: str = setting("partitioned", "how it is learned: a registered name, or package.module:Class")
    method_options: Mapping[str, Any] = setting({}, "keyword arguments of the method")
    chunks: tuple[float, ...] = setting(description="proportions u_1..u_C of the chunks, sum 1")
    parameters: tuple[float, ...] | None = setting(
        None, "proportions u_1..u_C of the parameters, one per chunk; null: as chunks"
    )
    seed: int = setting(
        0, "decides everything but the data: weights, partition, chunks, cohorts, noise", ge=0
    )
    scheme: Scheme = setting("random", "how parameters are partitioned: single weights, or units (node)")
    defaults: Defaults = setting("initial", "values of what a subnetwork does not contain")
    chain: tuple[str, ...] | None = setting(
        None, "for scheme node: Linear and Conv layers in order; null: an nn.Sequential's own"
    )
    device: str = setting("cpu", "where models are computed: cpu, cuda, cuda:0, ...", decides="course")

    def __post_init__(self) -> None:
        check_ranges(self)
        object.__setattr__(self, "chunks", check_proportions(self.chunks))
        if self.parameters is not None:
            parameters = check_proportions(self.parameters, "parameter proportions")
            object.__setattr__(self, "parameters", parameters)
            if len(parameters) != len(self.chunks):
                raise ValueError(
                    f"There are {len(self.chunks)} chunk proportions but {len(parameters)} parameter "
                    f"proportions; give one of each per chunk."
                )
