"""Numbers as people read them: bytes, seconds, counts."""

import math
from collections.abc import Mapping
from typing import Any

DASH = "\N{EM DASH}"  # for what is not known


def byte_unit(largest: float) -> tuple[float, str]:
    """Bytes per unit and the unit's name (decimal: 1 MB is 10^6 bytes) in which ``largest`` reads well."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= scale:
            return scale, unit
    return 1.0, "B"


def byte_text(count: float) -> str:
    """``7.39 MB``: three digits."""
    scale, unit = byte_unit(count)
    number = count / scale
    return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"


def span(one: float, other: float, unit: str = "") -> str:
    """A range, as everywhere in fedpart: ``-12.4..+14.1 deg``, the smaller end first.

    Three digits of its larger end, two of them behind the point at most, or as many as its first one needs.
    """
    largest = max(abs(one), abs(other))
    first = math.floor(math.log10(largest)) if 0 < largest < math.inf else 0
    places = min(max(2 - first, 0), max(2, -first))
    low, high = sorted((one, other))
    return with_unit(f"{low:+.{places}f}..{high:+.{places}f}", unit)


def with_unit(number: str, unit: str) -> str:
    """``9.8%``, ``14 deg``, or the number alone."""
    return f"{number}{'' if unit in ('', '%') else ' '}{unit}"


def digits(examples: int | None) -> int:
    """Digits behind the point of a percentage of so many examples: the last is no more than one of them.

    Two at most, as where the number is not known: None.
    """
    return 2 if not examples else min(2, max(0, math.ceil(math.log10(examples / 100))))


def counted(number: int, noun: str) -> str:
    """``1 round``, ``2,000 rounds``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """``3 h 20 min``, ``12 min 5 s`` or ``8.3 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min"


def privacy_text(summary: Mapping[str, Any]) -> str:
    """What a private run has spent, and whether that is only simulated; of others nothing."""
    if "epsilon" not in summary:
        return ""
    simulated = ", simulated" if summary.get("epsilon_simulated") else ""
    return f"epsilon {summary['epsilon']:.2f} at delta {summary['delta']:g}{simulated}"
