"""Cells that name something: a class, a client, a column. What means the same is one name, or refused."""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

# What R, pandas, spreadsheets and databases write for a value that is not there.
_MISSING = frozenset(
    (
        *("NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-nan", "-NaN", "NaT", "NULL", "null"),
        *("(null)", "None", "?", ".", r"\N"),
        *("#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!"),
    )
)
_WHOLE = re.compile(r"(-?\d+)\.0+")
_NUMBER = re.compile(r"[+-]?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d{1,2})?")
_WORDS = {"true": "1", "false": "0", "yes": "yes", "no": "no"}
_READ = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}  # by YAML, or some readers of it
_NO_WIDTH = dict.fromkeys((0x200B, 0xFEFF))


def plain(text: str) -> str:
    """A name as it looks: letters composed (NFC), any white space one blank, none around it."""
    return " ".join(unicodedata.normalize("NFC", text.translate(_NO_WIDTH)).split())


def in_yaml(name: str) -> str:
    """A name as a value of a YAML list: in quotes where YAML would read another value, or several."""
    simple = re.fullmatch(r"[^\W\d_][\w.-]*( [\w.-]+)*", name) and name.casefold() not in _READ
    return name if simple else json.dumps(name, ensure_ascii=False)


def numbered(values: Mapping[str, Sequence[Any]], name: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Names as numbers in ascending order, whole numbers by value and others as text.

    Args:
        values: of a column, by the file that they are from.
        name: of the column, for messages.

    Returns:
        [n] int64 for each file, and the K names; two that mean the same, such as true and 1, are refused.
    """
    texts = {file: texts_of(column, name, file) for file, column in values.items()}
    distinct: set[str] = set().union(*texts.values())
    whole = all(text.removeprefix("-").isdecimal() for text in distinct)
    known = sorted(distinct, key=(lambda text: (int(text), text)) if whole else str)
    meant: dict[str, str] = {}
    for text in known:
        if (other := meant.setdefault(_meaning(text), text)) != text:
            raise ValueError(
                f"The column {name!r} of {', '.join(texts)} has {other!r} and {text!r}, which mean the same; "
                f"write one of them throughout."
            )
    numbers = {text: number for number, text in enumerate(known)}
    return {file: torch.tensor([numbers[text] for text in row]) for file, row in texts.items()}, tuple(known)


def texts_of(column: Sequence[Any], name: str, file: str) -> list[str]:
    """Cells as names, a whole number without its decimals."""
    found = []
    for row, value in enumerate(column, start=1):
        if is_empty(value):
            raise ValueError(
                f"Row {row} of {file}: the column {name!r} is empty; fill it in, or remove the row."
            )
        text = _text(value)
        if text in _MISSING:
            raise ValueError(
                f"Row {row} of {file}: the column {name!r} is {text!r}, which stands for an empty cell; fill "
                f"it in, remove the row, or spell the name out if it is one."
            )
        found.append(text)
    return found


def is_empty(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return (
        value is None
        or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))
        or str(value).strip() == ""
    )


def _text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and value.is_integer():
        return str(int(value))
    text = plain(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
    return found[1] if (found := _WHOLE.fullmatch(text)) else text


def _meaning(text: str) -> str:
    """Equal for two spellings of a truth, of a number (1e+05 as R has it; 007 is a name of its own), and of
    letters that look the same, with marks in between that are not seen."""
    letters = unicodedata.normalize("NFKC", text)
    text = "".join(letter for letter in letters if unicodedata.category(letter) != "Cf")
    if (word := text.casefold()) in _WORDS:
        return _WORDS[word]
    return str(Fraction(text)) if _NUMBER.fullmatch(text) else text
