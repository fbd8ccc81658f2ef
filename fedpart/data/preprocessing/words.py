"""Texts as a network takes them: the numbers of their words in a vocabulary of the training texts."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.data.columns import Columns
from fedpart.data.preprocessing.base import Preprocessing
from fedpart.data.table_files import columns_of


class Words(Preprocessing, kind="words"):
    """Texts become ``[n, length]`` int64: 0 after the end, 1 for a word that is not known, 2 for the first of
    the known ``words``, and so on.

    Args:
        state: ``column`` of a table that has texts; ``pattern`` of a word in small letters, a regular
            expression; ``length`` in words, a longer text is cut; ``words``.
    """

    @classmethod
    def of(cls, texts: Iterable[str], most: int, length: int, column: str = "text") -> "Words":
        """With the commonest words of training texts, whose numbers are below ``most``."""
        words = Counter(word for text in texts for word in re.findall(r"\w+", text.lower()))
        known = [word for word, _ in words.most_common(most - 2)]
        return cls({"kind": "words", "column": column, "pattern": r"\w+", "length": length, "words": known})

    def forward(self, numbers: Tensor) -> Tensor:
        """Numbers of words as they are: a tensor holds no texts."""
        return numbers

    def encode(self, columns: Columns, file: str) -> Tensor:
        """The numbers of a table's texts; ``file``: its name, for a message where it has none."""
        column, length = self.state["column"], self.state["length"]
        require(column in columns, f"{file} has no column {column!r}, which holds the texts; add it.")
        numbers = {word: number for number, word in enumerate(self.state["words"], start=2)}
        rows = torch.zeros(len(columns[column]), length, dtype=torch.int64)
        for row, text in zip(rows, columns[column], strict=True):
            known = re.findall(self.state["pattern"], str(text).lower())[:length]
            row[: len(known)] = torch.tensor([numbers.get(word, 1) for word in known], dtype=torch.int64)
        return rows

    def inputs(self, given: Any) -> Tensor:
        """Inputs of a list of texts, or of a table with a column of them, see :func:`.columns_of`."""
        texts = isinstance(given, list | tuple) and all(isinstance(text, str) for text in given)
        return self.encode(*columns_of({self.state["column"]: given} if texts else given, {}))

    def example(self, rows: int) -> Tensor:
        """Texts of words that are not known."""
        return torch.ones(rows, self.state["length"], dtype=torch.int64)
