"""Distributions by name, for what differs between devices: a function of a random stream and its numbers."""

import inspect
import math
from collections.abc import Callable

import numpy as np

from fedpart.registry import Registry

DISTRIBUTIONS: Registry[Callable[..., float]] = Registry("distribution")


def check_draw(name: str, distribution: str, numbers: tuple[float, ...]) -> None:
    """Refuse a distribution that is not known, or numbers that are not its own.

    Args:
        name: of what is drawn, for the message.
        distribution: a registered name, or ``package.module:callable``.
        numbers: after the random stream, its arguments.

    Raises:
        ValueError: one sentence.
    """
    wanted = [*inspect.signature(DISTRIBUTIONS.resolve(distribution)).parameters][1:]
    if len(numbers) != len(wanted) or not all(0 < number < math.inf for number in numbers):
        raise ValueError(
            f"{name} is drawn from {distribution}, which takes positive numbers [{', '.join(wanted)}], got "
            f"{list(numbers)}."
        )


@DISTRIBUTIONS.register("uniform")
def between(rng: np.random.Generator, low: float, high: float) -> float:
    """Equally often everywhere between the two."""
    return float(rng.uniform(low, high))


@DISTRIBUTIONS.register("lognormal")
def lognormal(rng: np.random.Generator, median: float, sigma: float) -> float:
    """``median exp(sigma z)`` with a normal z: a factor of ``exp(sigma)`` up or down is one deviation."""
    return float(median * math.exp(sigma * rng.standard_normal()))


@DISTRIBUTIONS.register("pareto")
def pareto(rng: np.random.Generator, fastest: float, alpha: float) -> float:
    """``fastest u^(1 / alpha)`` with a uniform u: the time that it takes has a Pareto tail of index alpha.

    So a share of ``x^-alpha`` of the devices are more than x times as slow as the fastest.
    """
    return float(fastest * (1 - rng.random()) ** (1 / alpha))
