"""Scores: one table of words, units and digits, wherever they stand; estimates; numbers for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedpart.checks import shown as shown
from fedpart.data.trained_on import counted as counted
from simulations.config.load import EVIDENCE_NAMES

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
    """A range, ``-12.4..+14.1 deg``, the smaller end first, with three digits of its larger end; with more,
    at most four behind the point, where both ends would read alike."""
    largest = max(abs(one), abs(other))
    first = math.floor(math.log10(largest)) if 0 < largest < math.inf else 0
    places = min(max(2 - first, 0), max(2, -first))
    low, high = sorted((one, other))
    while places < 4 and low != high and f"{low:.{places}f}" == f"{high:.{places}f}":
        places += 1
    return with_unit(f"{low:+.{places}f}..{high:+.{places}f}", unit)


def with_unit(number: str, unit: str) -> str:
    """``9.8%``, ``14 deg``, or the number alone."""
    return f"{number}{'' if unit in ('', '%') else ' '}{unit}"


def digits(examples: int | None) -> int:
    """Digits behind the point, two at most, of a percentage of so many examples."""
    return 2 if not examples else min(2, max(0, math.ceil(math.log10(examples / 100))))


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
        """``self - other`` in standard errors of the difference, sqrt(e1^2 + e2^2), if they are known."""
        error = math.hypot(self.error or 0.0, other.error or 0.0)
        known = self.error is not None and other.error is not None and error > 0
        return (self.mean - other.mean) / error if known else None


@dataclass(frozen=True)
class Score:
    """How a number is told, wherever it stands."""

    word: str
    unit: str = ""  # in which people read it
    factor: float = 1.0  # from the files' number to it
    digits: int = 1
    larger: bool = False  # is better
    each: str = ""  # what a mean is over, for an axis

    @property
    def heading(self) -> str:
        """``accuracy [%]``; of bytes and times the word alone, for their numbers have units."""
        return f"{self.word} [{self.unit}]" if self.unit and self.unit not in _READ else self.word

    @property
    def axis(self) -> str:
        """``loss [nats per example]``."""
        return f"{self.word} [{self.unit}{self.each}]"

    def number(self, value: float, digits: int | None = None, sign: str = "") -> str:
        """In its unit, ``76.9``; ``sign``: "+", for one before what is not negative too."""
        return f"{self.factor * value:{sign},.{self.digits if digits is None else digits}f}"

    def text(self, value: float, digits: int | None = None) -> str:
        """With its unit, ``76.9%``, ``7.39 MB`` or ``12 min 5 s``."""
        if self.unit in _READ:
            return _READ[self.unit](value)
        return with_unit(self.number(value, digits), self.unit)

    def brief(self, value: float) -> str:
        """``76.9%`` or ``0.512``, where there is no room for a longer unit."""
        return self.text(value) if self.unit == "%" else self.number(value)

    def places(self, examples: int | None) -> int:
        """Digits that so many examples hold, see :func:`.digits`; of a loss two more."""
        return digits(examples) + (0 if self.unit == "%" else 2)

    def cell(self, estimate: Estimate | None, digits: int | None = None) -> str:
        """In a table whose heading has the unit: mean and standard error, or a dash."""
        places = self.digits if digits is None else digits
        return DASH if estimate is None else estimate.text(self.factor, places)

    def shown(self, estimate: Estimate | None) -> str:
        """The mean with a unit of bytes or time; else the number alone; or a dash."""
        tell = self.text if self.unit in _READ else self.number
        return DASH if estimate is None else tell(estimate.mean)


_READ = {"bytes": byte_text, "time": duration}
SCORES = {  # by their keys in metrics.jsonl and summary.json, without the part of the data before them
    "accuracy": Score("accuracy", "%", 100.0, 1, larger=True),
    "nll": Score("loss", "nats", 1.0, 3, each=" per example"),
    "log_likelihood": Score("log-likelihood", "nats", 1.0, 3, larger=True, each=" per example"),
    "lml": Score(EVIDENCE_NAMES["lml"], "nats", 1.0, 3, larger=True),  # per example, of federated runs
}
EVIDENCES = {key: Score(name, "nats", 1.0, 1, larger=True) for key, name in EVIDENCE_NAMES.items()}
SHARE, COUNT = Score("share", "%", 100.0, 1), Score("", digits=0)
BYTES, TIME = Score("bytes", "bytes"), Score("time", "time")
FIRST = ("accuracy", "nll")  # what a row of numbers is told by
PARTS = {"val": "validation", "test": "test", "train": "training", "client": "clients'"}  # of keys


def score_of(key: str) -> Score:
    """Of a key such as ``val_accuracy`` or ``client_nll_worst_decile``, or of one without its part."""
    return SCORES[key if key in SCORES else key.partition("_")[2].removesuffix("_worst_decile")]


def words_of(key: str) -> str:
    """``validation accuracy`` of ``val_accuracy``."""
    return f"{PARTS[key.partition('_')[0]]} {score_of(key).word}"


def first_of(row: Mapping[str, Any], part: str = "") -> str | None:
    """The key of an accuracy, else of a loss, that a row has; ``part`` of the data, as ``test_``."""
    return next((f"{part}{key}" for key in FIRST if row.get(f"{part}{key}") is not None), None)


def told(row: Mapping[str, Any], part: str = "") -> str:
    """The first of its scores, ``76.9%`` or ``0.512 nats``; empty where there is none."""
    key = first_of(row, part)
    return "" if key is None else score_of(key).text(row[key])


def size_name(row: Mapping[str, Any]) -> str:
    """What a network's size is called in a row of ``by_architecture``: the options that make it."""
    return ", ".join(f"{key} {value}" for key, value in row["model_options"].items()) or "as it is"


def client_text(client: int, names: Sequence[str] = ()) -> str:
    """A client's name in at most 32 printable characters; its number where clients have no names."""
    text = shown(names[client]).replace("\n", "?") if names else str(client)
    return text if len(text) <= 32 else f"{text[:29]}..."
