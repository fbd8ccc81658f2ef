"""A room's refusals as one table: what is tried, the error, and the sentence that it must say."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

Row = tuple[str, Callable[[], object], type[BaseException], str] | tuple[str, Callable[[], object], str]
"""What is tried, in words; a call of it; the error, if it is no ValueError; a regular expression that its
sentence must match."""


def check(rows: Iterable[Row]) -> None:
    """Tries every row, and fails once with all those that were taken, or refused in other words.

    A refusal is one line, so that a terminal, a log and a browser show it whole.
    """
    rows = list(rows)
    assert rows, "the table is empty"
    assert len({what for what, *_ in rows}) == len(rows), "two rows have the same name"
    faults = ((what, _fault(call, *(error or [ValueError]), pattern)) for what, call, *error, pattern in rows)
    wrong = [f"{what}: {fault}" for what, fault in faults if fault]
    assert not wrong, f"{len(wrong)} of {len(rows)} refusals are not as told:\n" + "\n".join(wrong)


def check_keywords(
    make: Callable[..., object],
    rows: Iterable[tuple[dict[str, Any], str]],
    error: type[BaseException] = ValueError,
) -> None:
    """As :func:`check`, of calls of ``make``: a row is its keywords, and the sentence."""
    check(
        (f"{number}, {', '.join(keywords)}: {says}", partial(make, **keywords), error, says)
        for number, (keywords, says) in enumerate(rows)
    )


def _fault(call: Callable[[], object], error: type[BaseException], pattern: str) -> str:
    try:
        call()
    except BaseException as refusal:  # also of another type, which is the finding
        sentence = str(refusal)
        if not isinstance(refusal, error):
            return f"{type(refusal).__name__} in place of {error.__name__}: {sentence}"
        if "\n" in sentence:
            return f"takes several lines: {sentence!r}"
        return "" if re.search(pattern, sentence) else f"says {sentence!r}, not {pattern!r}"
    return "was taken"
