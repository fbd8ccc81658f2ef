"""Ledger: how many sums a private run has released, on the disk before each is made."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from fedpart.training.files import SEAL, read_lines, sealed


class Ledger:
    """The releases of a private run, a line each, which is on the disk before the release is made.

    What was released stays so when a checkpoint is lost, or an older one is put back. A release that a crash
    prevents between the two is counted, for nobody can know.

    Args:
        file: with a sealed line per release; it need not be there. None: nothing is written.
        run: describes the run that it is of.

    Raises:
        ValueError: the file is damaged, or of another run.
    """

    def __init__(self, file: Path | None = None, run: str = "") -> None:
        self._file, self._seals = file, [run]
        if file is not None and file.exists():
            data = file.read_bytes()
            try:
                self._seals += [line[SEAL] for line in read_lines(data, run)]
            except ValueError as error:
                raise ValueError(
                    f"The releases of a private run in {file} cannot be read ({error}); put the file back as "
                    f"it was, for epsilon is not known without it, or start a new run."
                ) from None
            if torn := len(data) - (data.rfind(b"\n") + 1):
                os.truncate(file, len(data) - torn)

    @property
    def releases(self) -> int:
        """How many there are."""
        return len(self._seals) - 1

    @property
    def last(self) -> list[Any]:
        """How many there are, and the seal of the last one: what a checkpoint remembers."""
        return [self.releases, self._seals[-1]]

    def add(self, round: int) -> None:
        """Count the release of a round that is about to be made."""
        line = sealed({"round": round, "time": time.time()}, self._seals[-1])
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._seals.append(line[SEAL])

    def check(self, releases: int, last: str) -> None:
        """Refuse, with a ValueError, not to know what a checkpoint has behind it, see :attr:`last`."""
        if self._file is None:
            self._seals = [*self._seals, *[last] * (releases - self.releases)]
        elif self._seals[releases : releases + 1] != [last]:
            raise ValueError(
                f"The checkpoint has {releases} releases behind it that {self._file} does not count; put the "
                f"file back as it was, for epsilon is not known without it, or start a new run."
            )
