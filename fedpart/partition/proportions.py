"""Proportions u_1..u_C of clients, examples or parameters, and what follows from them."""

import math
from collections.abc import Collection

from fedpart.checks import is_list, require


def check_proportions(proportions: Collection[float], what: str = "chunk proportions") -> tuple[float, ...]:
    """The proportions as a tuple of 1 to 255 positive floats whose sum is 1."""
    if not is_list(proportions):
        raise ValueError(f"The {what} are one number per chunk, (0.8, 0.1, 0.1) say, got {proportions!r}.")
    try:
        u = tuple(float(p) for p in proportions if not isinstance(p, bool))
    except (TypeError, ValueError):
        u = ()
    require(len(u) >= len(proportions), f"All {what} must be positive numbers, got {list(proportions)!r}.")
    require(1 <= len(u) < 256, f"There must be between 1 and 255 {what}, got {len(u)}.")
    if any(not (math.isfinite(p) and p > 0) for p in u):
        raise ValueError(f"All {what} must be positive numbers, got {list(u)}.")
    if abs(sum(u) - 1) > 1e-6:
        raise ValueError(f"The {what} must sum to 1, but {list(u)} sums to {sum(u):g}.")
    return u


def largest_remainders(total: int, proportions: Collection[float]) -> list[int]:
    """Split ``total`` into integers within one of ``total * proportions``; what is left after rounding down
    goes to the largest remainders, ties to the earliest."""
    whole = math.fsum(proportions)
    quotas = [total * p / whole for p in proportions]
    counts = [math.floor(q + 1e-9) for q in quotas]
    order = sorted(range(len(quotas)), key=lambda i: (counts[i] - quotas[i], i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts
