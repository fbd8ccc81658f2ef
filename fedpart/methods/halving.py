"""Halving: which multiples of a run's learning rates are tried, and which of them L_ML lets go on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import fmean, median, stdev
from typing import Any

from fedpart.checks import check_list, is_number, require
from fedpart.training.settings import Settings, documented, setting

RATES = ("server", "psi", "local")
Course = Sequence[float | None]  # L_ML of a candidate's rounds, nats per example; None: a round has none


@documented
@dataclass(frozen=True)
class Halving(Settings):
    """Candidates for the learning rates of a federated run; each is a multiple of the server's, one of psi's
    and one of the clients'. They take turns, a round each, on the same cohorts.

    Raises:
        ValueError: no list of positive numbers, or fewer than two rounds.
    """

    server: tuple[float, ...] = setting((1.0,), "multiples of the server's learning rate")
    psi: tuple[float, ...] = setting((1.0,), "multiples of psi's learning rate")
    local: tuple[float, ...] = setting((1.0,), "multiples of the clients' learning rate")
    rounds: int = setting(10, "rounds of each candidate after which the worse half of them goes", ge=2)

    def __post_init__(self) -> None:
        for name in RATES:
            factors = getattr(self, name)
            check_list(f"halving.{name}", factors, "numbers", "[1, 3, 10]")
            positive = all(is_number(factor) and 0 < factor < math.inf for factor in factors)
            fault = f"halving.{name} has positive numbers, got {[*factors]!r}"
            require(positive and len(factors), f"{fault}; write [1, 3, 10], say.")
            object.__setattr__(self, name, tuple(dict.fromkeys(map(float, factors))))
        super().__post_init__()

    @cached_property
    def candidates(self) -> list[dict[str, float]]:
        """Of each the multiples by name."""
        every = product(*(getattr(self, name) for name in RATES))
        return [dict(zip(RATES, factors, strict=True)) for factors in every]

    def check(self, settings: Any, known: bool) -> None:
        """Refuse a run without ``known`` L_ML, or in which one candidate's rounds bear on another's."""
        require(known, f"halving goes by L_ML, which {settings.method!r} has not here; set halving to null.")
        names = ("privacy", "devices", "buffer", "keep_best", "error_feedback")
        used = [name for name in names if getattr(settings, name)]
        used += [f"method: {settings.method}"] if settings.combination.keeps else []
        fault = "With halving, candidates for the rates take turns on the same clients"
        require(not used, f"{fault}, which {' and '.join(used)} cannot follow; leave one of both out.")

    def survivors(self, courses: Mapping[int, Course]) -> list[int]:
        """Which candidates go on, by number and the best first; ``courses`` are of all their rounds.

        That is the better half by the mean L_ML, without the first half of ``rounds``; and who is within a
        standard error of the worst of these, until halves alone would have left one. Who has -inf, because
        its clients' numbers were not finite, goes; if all have, the first stays, and is not tried any more.
        """
        sound = [number for number, course in courses.items() if -math.inf not in course]
        counted = {number: courses[number][(self.rounds + 1) // 2 :] for number in sound}
        known = {number: [lml for lml in course if lml is not None] for number, course in counted.items()}
        if not all(known.values()):  # cohorts without an L_ML, which are those of all
            return sound
        ranked = sorted(sound, key=lambda number: fmean(known[number]), reverse=True)
        half = -(-len(courses) // 2)
        kept, rung = ranked[:half], max(map(len, courses.values())) // self.rounds
        if 2 ** (rung - 1) < len(self.candidates) and kept:
            last = counted[kept[-1]]
            kept += [number for number in ranked[half:] if not is_ahead(last, counted[number])]
        return kept or [next(iter(courses))]


def is_ahead(course: Course, other: Course) -> bool:
    """Whether a candidate is ahead by more than a standard error of the difference, round by round; no round
    counts for more than three times the usual one."""
    pairs = zip(course, other, strict=True)
    differences = [mine - its for mine, its in pairs if mine is not None and its is not None]
    if len(differences) < 2:
        return False
    most = 3 * median(map(abs, differences))
    limited = [max(-most, min(most, difference)) for difference in differences]
    return fmean(limited) > stdev(limited) / math.sqrt(len(limited))
