"""A setting: default, range and meaning, said once for Python and YAML; and those that every run has."""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedpart.parameters.assigned import Defaults
from fedpart.parameters.proportions import check_proportions
from fedpart.parameters.schemes import SCHEMES

Kind = TypeVar("Kind", bound=type)
Decides = Literal["numbers", "course", "nothing"]
_BOUNDS = {
    "gt": (operator.gt, "above"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "below"),
    "le": (operator.le, "at most"),
}


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
    """Class decorator: the docstring of a dataclass of settings lists its fields, and what it raises."""
    fields = [f"    {field.name}: {field.metadata['description']}." for field in dataclasses.fields(kind)]
    text = inspect.cleandoc(kind.__doc__ or "")
    if "Raises:" not in text:
        fields += ["", "Raises:", "    ValueError: a value out of range; one sentence that names it."]
    kind.__doc__ = "\n".join([text, "", "Attributes:", *fields])
    return kind


@dataclasses.dataclass(frozen=True)
class Settings:
    """A group of settings, whose fields are made by :func:`setting`.

    Raises:
        ValueError: a value out of range, or an unknown choice; one sentence that names it.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value, wanted = getattr(self, field.name), []
            bounds = [(*_BOUNDS[key], field.metadata[key]) for key in _BOUNDS if key in field.metadata]
            within = [f"{word} {bound}" for _, word, bound in bounds]
            if get_origin(hints[field.name]) is Literal and value not in get_args(hints[field.name]):
                *others, last = get_args(hints[field.name])
                wanted = [f"one of {', '.join(others)} or {last}"]
            elif isinstance(value, (int, float)) and not math.isfinite(value):
                wanted = ["finite", *within]
            elif isinstance(value, (int, float)) and not all(holds(value, n) for holds, _, n in bounds):
                wanted = within
            if wanted:
                raise ValueError(f"{field.name} is {' and '.join(wanted)}, got {value!r}.")

    def deciding(self) -> dict[str, Any]:
        """Those that decide the numbers of a run, as plain data by name."""
        decides = {field.name: field.metadata["decides"] for field in dataclasses.fields(self)}
        return {key: value for key, value in dataclasses.asdict(self).items() if decides[key] == "numbers"}


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """What federated and centralised runs both have."""

    method: str = setting("partitioned", "how it is learned: a registered name, or package.module:Class")
    method_options: Mapping[str, Any] = setting({}, "keyword arguments of the method")
    chunks: tuple[float, ...] = setting(description="proportions u_1..u_C of the chunks, sum 1")
    parameters: tuple[float, ...] | None = setting(
        None, "proportions u_1..u_C of the parameters, one per chunk; null: as chunks"
    )
    seed: int = setting(
        0, "decides everything but the data: weights, partition, chunks, cohorts, noise", ge=0
    )
    scheme: str = setting(
        "random",
        "how parameters are partitioned: random (single weights), node (units of layers), or "
        "package.module:callable",
    )
    defaults: Defaults = setting("initial", "values of what a subnetwork does not contain")
    chain: tuple[str, ...] | None = setting(
        None, "for scheme node: Linear and Conv layers in order; null: an nn.Sequential's own"
    )
    device: str = setting("cpu", "where models are computed: cpu, cuda, cuda:0, ...", decides="course")

    def __post_init__(self) -> None:
        super().__post_init__()
        SCHEMES.resolve(self.scheme)  # refuses
        object.__setattr__(self, "chunks", check_proportions(self.chunks))
        if self.parameters is not None:
            parameters = check_proportions(self.parameters, "parameter proportions")
            object.__setattr__(self, "parameters", parameters)
            if len(parameters) != len(self.chunks):
                raise ValueError(
                    f"There are {len(self.chunks)} chunk proportions but {len(parameters)} parameter "
                    f"proportions; give one of each per chunk."
                )
