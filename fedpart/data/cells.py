"""Cells of tables: names and numbers that mean the same, or become the same in float32, are refused."""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.trees import leaves

# What R, pandas, spreadsheets and databases write for a value that is not there, without case.
_GAPS = r"na n/a #n/a #na <na> nan -nan nat null (null) none nil -1.#ind 1.#ind -1.#qnan 1.#qnan ? . \n"
GAPS = frozenset(("#n/a n/a", *_GAPS.split(), "#div/0!", "#name?", "#null!", "#num!", "#ref!", "#value!"))
_WHOLE = re.compile(r"(-?\d+)\.0+")
_NUMBER = re.compile(r"[+-]?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d{1,2})?")
_WORDS = {"true": "1", "false": "0", "yes": "yes", "no": "no"}
_READ = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}  # by YAML, or some readers of it
_NO_WIDTH = dict.fromkeys((0x200B, 0xFEFF))


class Pointed(str):
    """Text such as 1.234 where numbers have decimal commas: no number, for it may be one of thousands."""

    def __float__(self) -> float:
        raise ValueError("it has a point where numbers have commas")


def plain(text: str) -> str:
    """A name as it looks: letters composed (NFC), any white space one blank, none around it."""
    return " ".join(unicodedata.normalize("NFC", text.translate(_NO_WIDTH)).split())


def in_yaml(name: str) -> str:
    """A name as a value of a YAML list: in quotes where YAML would read another value, or several."""
    simple = re.fullmatch(r"[^\W\d_][\w.-]*( [\w.-]+)*", name) and name.casefold() not in _READ
    return name if simple else json.dumps(name, ensure_ascii=False)


def ignoring(name: str) -> str:
    """How an input is left out, for messages: ``(data_options: {ignore: [name]})``."""
    return f"(data_options: {{ignore: [{in_yaml(name)}]}})"


def numbered(values: Mapping[str, Sequence[Any]], name: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Names of the column ``name`` by file as numbers in ascending order, ``[n]`` int64, whole numbers by
    value and others as text; and the K names. Two that mean the same, such as true and 1, are refused."""
    texts = {file: texts_of(column, name, file) for file, column in values.items()}
    distinct: set[str] = set().union(*texts.values())
    whole = all(text.removeprefix("-").isdecimal() for text in distinct)
    known = sorted(distinct, key=(lambda text: (int(text), text)) if whole else str)
    refuse_alike(known, f"The column {name!r} of {', '.join(texts)}", _meaning)
    numbers = {text: number for number, text in enumerate(known)}
    return {file: torch.tensor([numbers[text] for text in row]) for file, row in texts.items()}, tuple(known)


def truth(text: str) -> str:
    """Equal for two spellings of a truth, such as TRUE and pandas' True."""
    return word if (word := text.casefold()) in ("true", "false") else text


def refuse_alike(names: Iterable[str], whose: str, meaning: Callable[[str], str]) -> None:
    """Refuse two names that mean the same."""
    meant: dict[str, str] = {}
    for text in names:
        if (other := meant.setdefault(meaning(text), text)) != text:
            fault = f"{whose} has {other!r} and {text!r}, which mean the same"
            raise ValueError(f"{fault}; write one of them throughout.")


def texts_of(column: Sequence[Any], name: str, file: str) -> list[str]:
    """Cells as names, a whole number without its decimals."""
    names = []
    for row, value in enumerate(column, start=1):
        if is_empty(value):
            remedy = "fill it in, or remove the row"
            raise ValueError(f"Row {row} of {file}: the column {name!r} is empty; {remedy}.")
        text = text_of(value)
        if text.casefold() in GAPS:
            fault = f"Row {row} of {file}: the column {name!r} is {text!r}, which stands for an empty cell"
            raise ValueError(f"{fault}; fill it in, remove the row, or spell the name out if it is one.")
        names.append(text)
    return names


def is_empty(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return (
        value is None
        or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))
        or not str(value).strip()
    )


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing, or what stands for nothing in tables."""
    return is_empty(value) or plain(str(value)).casefold() in GAPS


def text_of(value: Any) -> str:
    """A cell as a name, a whole number without its decimals."""
    if isinstance(value, (float, np.floating)) and value.is_integer():
        return str(int(value))
    text = plain(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
    return whole[1] if (whole := _WHOLE.fullmatch(text)) else text


def _meaning(text: str) -> str:
    """Equal for two spellings of a truth, of a number (1e+05 as R has it; 007 is a name of its own), and of
    letters that look the same."""
    letters = unicodedata.normalize("NFKC", text)
    text = "".join(letter for letter in letters if unicodedata.category(letter) != "Cf")
    if (word := text.casefold()) in _WORDS:
        return _WORDS[word]
    return str(Fraction(text)) if _NUMBER.fullmatch(text) else text


Floats = NDArray[np.float64]
OTHER_UNIT = "write it in another unit, or subtract a constant"
_MOST = 2**24  # numbers of a tensor that are looked at, but never fewer than 1000 rows
_EXACT = 2**24  # whole numbers up to it are ones of float32
_SEEN: WeakSet[Dataset] = WeakSet()


def check_examples(data: Dataset, dtype: torch.dtype) -> None:
    """Refuse float64 inputs and targets of which ``dtype`` makes equal ones; a data set is looked at once."""
    if dtype == torch.float64 or data in _SEEN:
        return
    for kind in ("inputs", "targets"):
        for name, leaf in leaves(vars(data).get(kind, ()), kind):  # images that are not decoded have 32 bits
            # whole numbers of a tree may be names of things, which are not fitted
            whole = leaf is data.targets and leaf.dtype == torch.int64
            large = whole and bool((leaf.abs() > _EXACT).any())
            if leaf.dtype == torch.float64 or large:
                way_out = f"{OTHER_UNIT}, or compute with Task(module, precision='fp64')"
                check_positions(leaf.double().cpu().numpy(), f"Dataset {name}", way_out)
    _SEEN.add(data)


def check_positions(numbers: Floats, what: str, way_out: str) -> None:
    """:func:`check_float32` at each position of an example; ``numbers [n, ...]`` need not be finite."""
    if np.array_equal(_float32(numbers), numbers) or not np.isfinite(numbers).all():
        return
    rows = numbers.reshape(len(numbers), -1)
    for place, column in enumerate(rows[: max(1000, _MOST // rows.shape[1])].T):
        position = ", ".join(map(str, np.unravel_index(place, numbers.shape[1:]))) if numbers.ndim > 1 else ""
        check_float32(column, f"{what}[:, {position}]" if position else what, way_out)


def check_float32(numbers: Floats, what: str, way_out: str) -> None:
    """Refuse ``numbers [n]`` that float32 cannot hold, or of which it makes equal ones; whole numbers must
    all stay apart, others as :func:`merged` says."""
    if np.array_equal(rounded := _float32(numbers), numbers):
        return
    if len(beyond := numbers[~np.isfinite(rounded)]):
        raise ValueError(f"{what} holds {beyond[0]:g}, too large for float32; {way_out}.")
    if (pair := merged(numbers, rounded, all_apart=not (numbers % 1).any())) is not None:
        raise ValueError(f"{what} has values that are one in float32, such as {pair}; {way_out}.")


def merged(numbers: Floats, rounded: Floats, all_apart: bool = False) -> str | None:
    """Two of ``numbers [n]`` that became one in ``rounded [n]``. Unless all must stay apart, those may that
    lie closer together than 1e-4 of what the middle half of the values spans."""
    values, places = np.unique(numbers, return_index=True)
    apart = 8 * np.spacing(np.abs(values[1:]))
    if not all_apart:
        apart = np.maximum(apart, 1e-4 * np.subtract(*np.percentile(values, (75, 25))))
    met = np.flatnonzero((np.diff(rounded[places]) == 0) & (np.diff(values) > apart))
    return f"{values[met[0]]!s} and {values[met[0] + 1]!s}" if len(met) else None


def one_in_float64(column: Sequence[Any], numbers: Floats) -> str | None:
    """Two long whole numbers, as identifiers are, that are the same number here; None if there are none."""
    known: dict[float, int] = {}
    for row in map(int, np.flatnonzero(np.abs(numbers) >= 2**53)):
        text = str(column[row]).strip()
        if re.fullmatch(r"[-+]?\d+", text) and known.setdefault(numbers[row], int(text)) != int(text):
            return f"{known[numbers[row]]} and {text}"
    return None


def _float32(numbers: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32).astype(np.float64)
