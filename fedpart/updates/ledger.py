"""Ledger: how many sums a private run has released, on the disk before each is made, and what they cost."""

import json
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpart.training.files import SEAL, append, read_lines, read_object, remembered, sealed


class Ledger:
    """The releases of a private run, a sealed line each, which is on the disk before the release is made.

    What was released stays so when a checkpoint is lost, or an older one is put back. A release that a crash
    prevents between the two is counted, and so is one whose line is torn, for nobody can know. That the
    file itself is lost, or put back, shows in a second count outside of the run's folder, see
    :func:`.remembered`: a byte for each release of the run of a name or, without one, of the file's place.
    """

    def __init__(self, file: Path | None = None, run: str = "") -> None:
        self._file, self._seals = file, [run]
        if file is None:
            return
        data = file.read_bytes() if file.exists() else b""
        try:
            self._seals += [line[SEAL] for line in read_lines(data, run)]
        except ValueError as error:
            fault = f"The releases of a private run in {file} cannot be read ({error})"
            remedy = "put the file back as it was, for epsilon is not known without it, or start a new run"
            raise ValueError(f"{fault}; {remedy}.") from None
        if torn := data[data.rfind(b"\n") + 1 :]:
            try:
                self._seals.append(read_object(torn, self._seals[-1])[SEAL])
                append(file, b"\n")
            except ValueError:
                os.truncate(file, len(data) - len(torn))
                self.add(None)
        if (made := self._made()) > self.releases:
            raise ValueError(
                f"The run has made {made} releases, of which {file} counts {self.releases}; put the file "
                f"back as it was, for epsilon is not known without it, or start a new run in another place."
            )

    @property
    def releases(self) -> int:
        """How many there are."""
        return len(self._seals) - 1

    @property
    def last(self) -> list[Any]:
        """How many there are, and the seal of the last one: what a checkpoint remembers."""
        return [self.releases, self._seals[-1]]

    def add(self, round: int | None) -> None:
        """Count the release of a round that is about to be made; None: of one that nobody knows."""
        line = sealed({"round": round, "time": time.time()}, self._seals[-1])
        if self._file is not None:
            append(self._file, json.dumps(line).encode() + b"\n")
        self._seals.append(line[SEAL])
        if self._file is not None:
            try:
                append(self._outside(self._file), b"." * (self.releases - self._made()))
            except (OSError, RuntimeError) as error:
                warnings.warn(
                    f"Releases are counted in {self._file} alone, for no second count can be kept ({error}); "
                    f"do not lose that file.",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _made(self) -> int:
        """How many the count outside of the folder knows of."""
        try:
            return 0 if self._file is None else self._outside(self._file).stat().st_size
        except (OSError, RuntimeError):
            return 0

    def _outside(self, file: Path) -> Path:
        run = self._seals[0]
        return remembered("releases", json.loads(run).get("run") or f"{run} {file.resolve()}")

    def check(self, releases: int, last: str) -> None:
        """Refuse, with a ValueError, not to know what a checkpoint has behind it, see :attr:`last`."""
        if self._file is None:
            self._seals = [*self._seals, *[last] * (releases - self.releases)]
        elif self._seals[releases : releases + 1] != [last]:
            fault = f"The checkpoint has {releases} releases behind it that {self._file} does not count"
            remedy = "put the file back as it was, for epsilon is not known without it, or start a new run"
            raise ValueError(f"{fault}; {remedy}.")


ORDERS = np.array([*range(2, 257), 320, 384, 512, 768, 1024])


def renyi(rate: float, noise_multiplier: float) -> NDArray[np.float64]:
    """Renyi divergence of one sampled Gaussian mechanism at each of :data:`ORDERS`, nats.

    Every client takes part with probability ``rate`` (Poisson sampling); neighbours differ by one client. For
    whole orders a (Mironov, Talwar, Zhang 2019, Section 3.3), with q the rate and z the multiplier,
    ``log(sum_k binomial(a, k) (1 - q)^(a - k) q^k exp(k (k - 1) / (2 z^2))) / (a - 1)``."""
    if rate == 1:
        return ORDERS / (2 * noise_multiplier**2)
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, ORDERS[-1] + 1)))))  # of factorials
    divergences = []
    for a in ORDERS:
        k = np.arange(a + 1)
        terms = logs[a] - logs[k] - logs[a - k] + k * math.log(rate) + (a - k) * math.log1p(-rate)
        divergences.append(np.logaddexp.reduce(terms + k * (k - 1) / (2 * noise_multiplier**2)) / (a - 1))
    return np.array(divergences)


def epsilon(divergence: NDArray[np.float64], rounds: int, delta: float) -> float:
    """The epsilon at ``delta`` of ``rounds`` mechanisms of that :func:`renyi` divergence.

    ``min_a T d_a + log(1 - 1/a) - (log delta + log a) / (a - 1)`` for T rounds and divergences d_a (Canonne,
    Kamath, Steinke 2020, Proposition 12)."""
    if rounds == 0:
        return 0.0
    bounds = rounds * divergence + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(bounds.min()))
