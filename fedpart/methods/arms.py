"""What FedEx's clients try: configurations of local training, in grids with a distribution each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedpart.checks import require
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
    fault = f"FedEx's space is where a number of arms is drawn, but arms is {arms!r}"
    require(space is None, f"{fault}; give a number as arms, or leave space out.")
    if isinstance(arms, Mapping) and arms:
        for key, values in arms.items():
            require(
                isinstance(values, Sequence) and not isinstance(values, str) and values,
                f"FedEx's arms need a list of values for {key}, at least one, got {values!r}.",
            )
        return tuple(_listed([{key: value} for value in values]) for key, values in arms.items())
    if isinstance(arms, Sequence) and not isinstance(arms, str) and arms:
        return (_listed(arms),)
    raise ValueError(
        f"FedEx's arms are a mapping from keys to lists of values ({{learning_rate: [0.01, 0.1]}}), a list "
        f"of configurations ([{{learning_rate: 0.1, epochs: 2}}, ...]), or how many are drawn around the "
        f"run's own settings, got {arms!r}."
    )


def _listed(arms: Sequence[Any]) -> Grid:
    labels: list[str] = []
    for arm in arms:
        require(
            isinstance(arm, Mapping),
            f"An arm of FedEx is a mapping such as {{learning_rate: 0.1}}, got {arm!r}.",
        )
        for key, value in arm.items():
            _check(key, value)
        shown = {key: f"{100 * value:g}%" if key == DROPOUT else f"{value:g}" for key, value in arm.items()}
        label = ",".join(f"{key}={value}" for key, value in shown.items()) or "own"
        require(label not in labels, f"FedEx's arms differ from one another, but two are {label}.")
        labels.append(label)
    return Grid(tuple(dict(arm) for arm in arms), tuple(labels))


def _check(key: str, value: Any) -> None:
    """Refuse what a client cannot train with."""
    require(key in KEYS, f"FedEx's arms set {', '.join(KEYS)}, but not {key!r}.")
    whole = key in WHOLE
    require(
        isinstance(value, int if whole else (int, float)) and not isinstance(value, bool),
        f"FedEx's arms need {'whole numbers' if whole else 'numbers'} for {key}, got {value!r}.",
    )
    if key == DROPOUT:
        require(0 < value < 1, f"FedEx's drop rates lie strictly between 0 and 1, got {value}.")
        return
    settings: dict[str, Any] = {key: value}
    try:
        LocalSettings(**settings)
    except ValueError as error:
        raise ValueError(f"FedEx's arms cannot set {key} to {value}: {error}") from error


def _perturbed(count: int, space: Mapping[str, Any], eps: float, seed: int) -> Grid:
    """The run's own settings, and others at distances drawn from U(-eps, eps); of whole numbers from so many
    steps, rounded up."""
    require(count >= 1, f"FedEx needs at least one arm, got {count}.")
    require(0 < eps <= 1, f"FedEx's eps lies above 0 and is at most 1, got {eps}.")
    require(
        isinstance(space, Mapping) and space,
        f"FedEx's space is a mapping with at least one key, such as learning_rate: {{log: [0.001, 1]}}, got "
        f"{space!r}.",
    )
    arms: list[Arm] = [{}]
    by_key = {key: _scale(key, value) for key, value in space.items()}
    scales = {key: by_key[key] for key in KEYS if key in by_key}  # draws do not follow a file's order
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
    require(
        isinstance(ends, Sequence) and not isinstance(ends, str) and len(ends) == 2,
        f"FedEx's space gives {key} as [low, high] or {{log: [low, high]}}, got {given!r}.",
    )
    for end in ends:
        _check(key, end)
    low, high = ends
    require(
        low < high and (low > 0 or not log),
        f"FedEx's space needs a low end below the high one for {key}, above 0 if logarithmic, got {given!r}.",
    )
    return low, high, log, key in WHOLE
