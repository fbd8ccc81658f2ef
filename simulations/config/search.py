"""SearchSection: what `fedpart search` tries, and how it chooses."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from pydantic import field_validator

from simulations.config.keys import Section, entry

OBJECTIVES = {  # key of a line of metrics.jsonl -> whether larger is better
    "val_accuracy": True,
    "val_nll": False,
    "client_accuracy": True,
    "client_nll": False,
}


@dataclass(frozen=True)
class Domain:
    """What a key may be: two bounds, which belong to it, of whole numbers if both are; or the choices."""

    kind: Literal["range", "log", "choice"]
    ends: tuple[Any, ...]

    @property
    def whole(self) -> bool:
        """Whether all between the bounds are whole numbers."""
        return all(isinstance(end, int) for end in self.ends)

    def __contains__(self, value: object) -> bool:
        if self.kind == "choice":
            return value in self.ends
        kinds = (int,) if self.whole else (int, float)
        return type(value) in kinds and self.ends[0] <= value <= self.ends[1]


def domain_of(key: str, given: Any) -> Domain:
    """What a key may be."""
    if isinstance(given, Mapping) and len(given) == 1:
        ((kind, inside),) = given.items()
        if kind == "choice" and isinstance(inside, list) and inside:
            if any(inside.count(value) > 1 for value in inside):
                raise ValueError(f"space.{key} offers a value twice; name every value once")
            return Domain("choice", tuple(inside))
        if kind == "log" and _is_range(inside) and inside[0] > 0:
            return Domain("log", tuple(inside))
    elif _is_range(given):
        return Domain("range", tuple(given))
    remedy = "write [low, high], log: [low, high] with low above 0, or choice: [a, b, ...]"
    raise ValueError(f"space.{key} cannot be {given!r}; {remedy}")


def _is_range(given: Any) -> bool:
    numbers = isinstance(given, list) and len(given) == 2 and {type(end) for end in given} <= {int, float}
    return numbers and -inf < given[0] < given[1] < inf


class SearchSection(Section):
    """What `fedpart search` tries, and how it chooses."""

    space: dict[str, Any] = entry(
        ...,
        "keys of this configuration and what they may be: [low, high], {log: [low, high]} or {choice: [..]}; "
        "whole numbers if both ends are",
        min_length=1,
    )
    trials: int = entry(
        20,
        "runs, each with values of its own; the first one has the configuration's, where space offers them",
        ge=1,
    )
    sampler: Literal["random", "tpe", "gp"] = entry(
        "tpe",
        "how values are chosen: random; tpe, by densities of good and bad ones; gp, by a Gaussian process",
    )
    pruner: Literal["none", "asha", "hyperband", "median"] = entry(
        "none",
        "when a run that does badly is stopped: asha, successive halving; hyperband, several of these; "
        "median, if it is worse than half of those before",
    )
    objective: Literal["val_accuracy", "val_nll", "client_accuracy", "client_nll"] = entry(
        "val_accuracy",
        "of a run's last evaluation: on validation data, or, with evaluation: clients, by the clients",
    )
    min_rounds: int | None = entry(
        None, "rounds or iterations before which no run is stopped; null: evaluate_every", ge=1
    )

    @field_validator("space")
    @classmethod
    def _domains(cls, space: dict[str, Any]) -> dict[str, Any]:
        for key, value in space.items():
            domain_of(key, value)
        return space

    def domains(self) -> dict[str, Domain]:
        return {key: domain_of(key, value) for key, value in self.space.items()}
