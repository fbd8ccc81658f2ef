"""Estimate: a mean and its standard error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, and its standard error std(ddof=1) / sqrt(n); None with one seed."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Estimate | None:
        """Summarise one value per seed; None if a seed has none."""
        numbers = list(values)
        known = [float(value) for value in numbers if value is not None and math.isfinite(value)]
        if not known or len(known) < len(numbers):
            return None
        return cls(fmean(known), stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None)

    def text(self, factor: float = 1.0, digits: int = 2) -> str:
        """``95.40 ± 0.12``, or with one seed ``95.40``; both multiplied by ``factor``."""
        error = "" if self.error is None else f" \N{PLUS-MINUS SIGN} {factor * self.error:.{digits}f}"
        return f"{factor * self.mean:.{digits}f}{error}"

    def difference(self, other: Estimate) -> float | None:
        """``self - other`` in standard errors of the difference, sqrt(e1^2 + e2^2).

        None where an error is not known (one seed), or both are 0.
        """
        if self.error is None or other.error is None:
            return None
        error = math.hypot(self.error, other.error)
        return (self.mean - other.mean) / error if error > 0 else None
