"""What FedEx's clients try: configurations of local training, in grids with a distribution each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedpart.randomness.streams import generator
from fedpart.training.local import LocalSettings

DROPOUT = "dropout"  # the rate of all dropout layers; the other keys are fields of LocalSettings
KEYS = ("learning_rate", "momentum", "weight_decay", "epochs", "batch_size", DROPOUT)
WHOLE = [field.name for field in fields(LocalSettings) if field.type is int]

# Ranges of the published code (mkhodak/FedEx, cifar.py); here momentum is below 1, and the drop rate above 0.
SPACE: Mapping[str, Any] = {
    "learning_rate": {"log": [1e-4, 1.0]},
    "momentum": [0.0, 0.99],
    "weight_decay": {"log": [1e-5, 1e-1]},
    "epochs": [1, 5],
    "batch_size": {"log": [8, 128]},
    DROPOUT: [0.01, 0.5],
}


@dataclass(frozen=True)
class Near:
    """A value at a fixed distance from the run's own, on a scale from ``low`` to ``high``.

    ``log``: whether the scale is logarithmic; ``whole``: whether only whole numbers are on it. ``shift``: the
    distance, as a share of the scale; of whole numbers in steps, which are doublings if logarithmic.
    """

    low: float
    high: float
    log: bool
    whole: bool
    shift: float

    def at(self, own: float) -> float:
        """The value, given the run's own; no further than the scale's ends."""
        if self.whole:
            moved = own * 2**self.shift if self.log else own + self.shift
            return round(min(self.high, max(self.low, moved)))
        low, high, value = (math.log(max(v, self.low)) if self.log else v for v in (self.low, self.high, own))
        moved = min(high, max(low, value + self.shift * (high - low)))
        return min(self.high, max(self.low, math.exp(moved) if self.log else moved))


Arm = Mapping[str, "float | Near"]


@dataclass(frozen=True)
class Grid:
    """Configurations that one distribution is over, and what each is called."""

    arms: tuple[Arm, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arms)


def grids_of(arms: Any, space: Mapping[str, Any] | None, eps: float, seed: int) -> tuple[Grid, ...]:
    """The grids that FedEx's options describe, see :class:`.FedEx`."""
    if isinstance(arms, int) and not isinstance(arms, bool):
        return (_perturbed(arms, SPACE if space is None else space, eps, seed),)
    if space is not None:
        raise ValueError(
            f"FedEx's space is where a number of arms is drawn, but arms is {arms!r}; give a number as arms, "
            f"or leave space out."
        )
    if isinstance(arms, Mapping) and arms:
        return tuple(_listed([{key: value} for value in _values(key, arms[key])]) for key in arms)
    if isinstance(arms, Sequence) and not isinstance(arms, str) and arms:
        return (_listed(arms),)
    raise ValueError(
        f"FedEx's arms are a mapping from keys to lists of values ({{learning_rate: [0.01, 0.1]}}), a list "
        f"of configurations ([{{learning_rate: 0.1, epochs: 2}}, ...]), or how many are drawn around the "
        f"run's own settings, got {arms!r}."
    )


def _values(key: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ValueError(f"FedEx's arms need a list of values for {key}, at least one, got {given!r}.")
    return given


def _listed(arms: Sequence[Any]) -> Grid:
    for arm in arms:
        if not isinstance(arm, Mapping):
            raise ValueError(f"An arm of FedEx is a mapping such as {{learning_rate: 0.1}}, got {arm!r}.")
        for key, value in arm.items():
            _check(key, value)
    labels = tuple(
        ",".join(f"{key}={_shown(key, value)}" for key, value in arm.items()) or "own" for arm in arms
    )
    if len(set(labels)) < len(labels):
        raise ValueError(f"FedEx's arms differ from one another, but two are {_twice(labels)}.")
    return Grid(tuple(dict(arm) for arm in arms), labels)


def _twice(labels: Sequence[str]) -> str:
    return next(label for label in labels if labels.count(label) > 1)


def _shown(key: str, value: float) -> str:
    return f"{100 * value:g}%" if key == DROPOUT else f"{value:g}"


def _check(key: str, value: Any) -> None:
    """Refuse what a client cannot train with."""
    if key not in KEYS:
        raise ValueError(f"FedEx's arms set {', '.join(KEYS)}, but not {key!r}.")
    if isinstance(value, bool) or not isinstance(value, int if key in WHOLE else (int, float)):
        kind = "whole numbers" if key in WHOLE else "numbers"
        raise ValueError(f"FedEx's arms need {kind} for {key}, got {value!r}.")
    if key == DROPOUT:
        if not 0 < value < 1:
            raise ValueError(f"FedEx's drop rates lie strictly between 0 and 1, got {value}.")
        return
    given: dict[str, Any] = {key: value}
    try:
        LocalSettings(**given)
    except ValueError as error:
        raise ValueError(f"FedEx's arms cannot set {key} to {value}: {error}") from error


def _perturbed(count: int, space: Mapping[str, Any], eps: float, seed: int) -> Grid:
    """The run's own settings, and others at distances drawn from U(-eps, eps); of whole numbers from so many
    steps, rounded up."""
    if count < 1:
        raise ValueError(f"FedEx needs at least one arm, got {count}.")
    if not 0 < eps <= 1:
        raise ValueError(f"FedEx's eps lies above 0 and is at most 1, got {eps}.")
    if not isinstance(space, Mapping) or not space:
        raise ValueError(
            f"FedEx's space is a mapping with at least one key, such as learning_rate: {{log: [0.001, 1]}}, "
            f"got {space!r}."
        )
    arms: list[Arm] = [{}]
    found = {key: _scale(key, given) for key, given in space.items()}
    scales = {key: found[key] for key in KEYS if key in found}  # draws do not follow the order in a file
    for arm in range(1, count):
        rng = generator(seed, "FedEx's arms", arm)
        arms.append({key: Near(*scale, _shift(rng, eps, *scale)) for key, scale in scales.items()})
    return Grid(tuple(arms), tuple(str(arm) for arm in range(count)))


def _shift(rng: np.random.Generator, eps: float, low: float, high: float, log: bool, whole: bool) -> float:
    if not whole:
        return float(rng.uniform(-eps, eps))
    steps = math.ceil(eps * (math.log2(high / low) if log else high - low))
    return int(rng.integers(-steps, steps + 1))


def _scale(key: str, given: Any) -> tuple[float, float, bool, bool]:
    """Lower and upper end, whether logarithmic, whether whole."""
    log = isinstance(given, Mapping) and list(given) == ["log"]
    ends = given["log"] if log else given
    if not isinstance(ends, Sequence) or isinstance(ends, str) or len(ends) != 2:
        raise ValueError(f"FedEx's space gives {key} as [low, high] or {{log: [low, high]}}, got {given!r}.")
    for end in ends:
        _check(key, end)
    low, high = ends
    if not (low < high and (low > 0 or not log)):
        raise ValueError(
            f"FedEx's space needs a low end below the high one for {key}, above 0 if logarithmic, got "
            f"{given!r}."
        )
    return low, high, log, key in WHOLE
