"""Differential privacy of clients with partial uploads: cohorts, noise, and what they cost."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart.checks import require
from fedpart.randomness.streams import generator
from fedpart.training.settings import Settings, documented, setting
from fedpart.updates.ledger import Ledger, epsilon, renyi
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import PSI, Bound, Bounds, Norms, Round, Update, known

COUNTED = 0.05  # of what a round spends, 1 / z^2, what counting clients takes where norms follow a quantile
RATE = 0.2  # of norms that follow a quantile, a round (Andrew et al. 2021)
REACH = 1e6  # to which multiple of its first value, and part of it, such a norm goes


@documented
@dataclass(frozen=True)
class PrivacySettings(Settings):
    """Differential privacy of clients, by Gaussian noise on clipped sums; see ``docs/guides/privacy.md``."""

    noise_multiplier: float = setting(
        description="z, the noise's standard deviation over the sensitivity of all that a client uploads",
        gt=0,
    )
    delta: float = setting(1e-5, "at which epsilon is reported", gt=0, lt=1)
    randomness: Literal["system", "seed"] = setting(
        "system",
        "of noise and cohorts: the operating system's, or the seed's, which clients know and can undo: for "
        "simulations that can be repeated",
    )


def refuse_seeded(privacy: PrivacySettings | None) -> None:
    """Refuse a run with real clients whose noise they could take off again."""
    fault = "privacy.randomness is seed, which clients know, and real ones could take the noise off again"
    remedy = "set randomness: system, or simulate with fedpart run"
    require(privacy is None or privacy.randomness == "system", f"{fault}; {remedy}.")


class Privacy(Stage):
    """The Gaussian mechanism of a round, on everything that the round's clients have uploaded.

    A client is in a round with probability ``q = cohort / clients``, on its own, and uploads parts, those of
    cells and psi that its chunk, cap and architecture have, of L2 norms up to S_g. Every part's sum gets
    noise of standard deviation ``sigma_g = z sqrt(G) S_g``, where G is the largest number of parts that a
    client has: the sum of ``(S_g / sigma_g)^2`` over a client's parts is then ``1 / z^2`` at most, and all
    parts together are one Gaussian mechanism of multiplier z. Sums are divided by ``q N_g``, the expected
    number of contributors (where local steps draw sizes, of shares of steps), which no client's answer
    changes, and released whether somebody contributed or not.

    With ``clip.quantile`` S_g follows that quantile u of the clients' norms (Andrew et al. 2021): a client
    adds 1 - u to a count of every part that is no longer than S_g, else -u. Counts get noise of deviation
    ``sigma_b = z m sqrt(G / a)``, m the larger of u and 1 - u, and sums ``z sqrt(G / (1 - a)) S_g``, with a
    of :data:`COUNTED`: all of it is one mechanism of multiplier z again. After the round S_g is multiplied by
    ``exp(-rate c_g)``, where c_g is the count over ``q N_g``, within -m and m, so that those who do not
    answer move nothing; and it stays within :data:`REACH` times its first value and a part in as many.

    Args:
        run: with ``privacy``; its method's plans depend on a client's :class:`.Kind` alone.

    Attributes:
        releases: how many sums have been released: those of rounds that were computed again with other
            noise, after a crash or from an older checkpoint, count each time.

    Raises:
        ValueError: psi is learned, and no norm is set for it.
    """

    equal, private = True, True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        settings = run.settings
        self._settings: PrivacySettings = settings.privacy
        self.rate = settings.cohort / settings.clients
        contributors: dict[int, float] = {}
        most = 0
        for (_, _, architecture), (client, count) in run.kinds.items():
            parts = run.upload_sizes(client, run.plan(client, 1))
            most = max(most, len(parts))
            for part in parts:
                share = run.expected_shares[architecture].get(part, 1.0)
                contributors[part] = contributors.get(part, 0) + count * share
        if PSI in contributors and settings.clip.psi is None:
            raise ValueError("Privacy needs a norm for the psi gradient, which is learned; set clip.psi.")
        self._quantile: float | None = settings.clip.quantile
        self._first = [bound.norm or math.inf for bound in settings.clip.bounds(run.partition)]
        self._norms = [*self._first]
        noise, counted = self._settings.noise_multiplier * math.sqrt(most), COUNTED
        if self._quantile is None:
            self.count_deviation = counted = 0.0
        else:
            self.count_deviation = noise * _largest(self._quantile) / math.sqrt(counted)
        self._multiplier = noise / math.sqrt(1 - counted)
        self.weights = {part: self.rate * count for part, count in sorted(contributors.items())}
        self._divergence = renyi(self.rate, self._settings.noise_multiplier)
        self.releases, self._ledger = 0, Ledger()
        self._behind: tuple[int, list[Any] | None] = (0, None)

    @property
    def deviations(self) -> dict[int, float]:
        """Of the noise of each part's sum in the next round."""
        return {part: self._multiplier * self._norms[part] for part in self.weights}

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return settings.privacy is not None

    @classmethod
    def check(cls, settings: Any) -> None:
        clip = settings.clip
        if settings.privacy is None:
            fault = "clip.quantile counts clients under the noise of privacy, and there is none"
            remedy = "set privacy as well, or clip: adaptive"
            require(clip is None or clip.quantile is None, f"{fault}; {remedy}.")
            return
        uniform = settings.weighting == "uniform"
        require(uniform, "Privacy has to bound the weight of a client; set weighting: uniform.")
        fault = "Privacy needs norms to clip to, and none that follow the clients without noise"
        remedy = "set clip.weights, and clip.psi for psi, and clip.quantile to have them follow"
        require(clip is not None and clip.multiple is None, f"{fault}; {remedy}.")
        require(
            not settings.error_feedback,
            "Privacy is spent round by round, but error_feedback carries what a client has computed from one "
            "round to the next; leave one of the two out.",
        )
        fault = "Privacy adds noise to a sum, which a defence does not take"
        require(settings.defence is None, f"{fault}; leave defence out.")
        require(
            settings.min_replies == 1,
            f"Privacy steps in every round, whoever has answered, but min_replies is {settings.min_replies}; "
            f"leave it at 1.",
        )
        fault = "What clients say in evaluations is not covered by differential privacy"
        remedy = "set evaluation: central or none, or leave privacy out"
        require(settings.evaluation != "clients", f"{fault}; {remedy}.")

    def start(self, round: Round) -> Round:
        """With the norms to which the server clips, where they follow the clients."""
        bounds = self.bounds()
        return round if bounds is None else replace(round, bounds=bounds)

    def bounds(self) -> Bounds | None:
        """To what the next round's updates are clipped; None: to what the settings say."""
        return None if self._quantile is None else [Bound(norm) for norm in self._norms]

    def cohort(self, round: int, available: Sequence[int] | None = None, **more: Any) -> list[int]:
        """Each client with probability q, so that their number varies; the server's secret."""
        pool = sorted(set(range(self.run.settings.clients) if available is None else available))
        drawn = self._uniform(pool[-1] + 1 if pool else 0, "cohort", round)
        return [client for client in pool if drawn[client] < self.rate]

    def send(self, update: Update, client: int, round: Round) -> None:
        """What it has cost stays with the client."""
        update.visited, update.seconds = 0, 0.0

    def total(self, total: Update | None, round: int, norms: Mapping[int, Norms]) -> Update:
        """The round's sum with noise and fixed weights, in place; the next round's norms follow ``norms``.

        Raises:
            OSError: it cannot be written down, so nothing is released.
        """
        if self.repeats:  # what is computed again is released again, to the bit
            self.releases = round
        else:
            self._ledger.add(round)
            self.releases = self._ledger.releases
        total = Update(clients=0) if total is None else total
        for part, deviation in self.deviations.items():
            if part == PSI:
                mask = self.run.psi_mask
                noise = self._noise(len(mask), "psi", round, deviation) * mask
            else:
                start, end = self.run.partition.cells[part - 1 : part + 1]
                noise = self._noise(end - start, f"w_{part}", round, deviation)
            held = total.parts.get(part)
            total.parts[part] = noise if held is None else held.add_(noise.to(held.device))
            total.weights[part] = self.weights[part]
        if self._quantile is not None:
            self._follow(known(norms), self._quantile, round)
        return total

    def _follow(self, norms: Mapping[int, Mapping[int, float]], quantile: float, round: int) -> None:
        """Bring each norm nearer to the quantile of the clients', whom only noisy counts tell of."""
        for part, weight in self.weights.items():
            lengths = [of_client[part] for of_client in norms.values() if part in of_client]
            count = sum(length <= self._norms[part] for length in lengths) - quantile * len(lengths)
            count += self._noise(1, f"count {part}", round, self.count_deviation).item()
            step = min(max(count / weight, -_largest(quantile)), _largest(quantile))
            norm, first = self._norms[part] * math.exp(-RATE * step), self._first[part]
            self._norms[part] = min(max(norm, first / REACH), first * REACH)

    def report(self, round: int) -> dict[str, Any]:
        return {"epsilon": self.epsilon(), "examples": None, "client_seconds": None}

    @property
    def repeats(self) -> bool:
        """Whether noise and cohorts are functions of the seed."""
        return self._settings.randomness == "seed"

    def keep_in(self, residuals: Path, releases: Path, run: str) -> None:
        """Count releases in a file, those included that it has already."""
        if not self.repeats:
            self._ledger = Ledger(releases, run)
            self.releases = self._ledger.releases

    def state_dict(self) -> dict[str, Any]:
        """The norms, where they follow the clients, and the releases, where they have to be counted."""
        norms = {} if self._quantile is None else {"private_norms": [*self._norms]}
        return norms if self.repeats else norms | {"releases": self._ledger.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; the releases are then counted by :meth:`loaded`."""
        if "private_norms" in state:
            norms = [float(norm) for norm in state["private_norms"]]
            if len(norms) != len(self._norms):
                raise ValueError(f"{len(norms)} norms are in the place of {len(self._norms)}")
            self._norms = norms
        self._behind = state["completed"], state.get("releases")

    def loaded(self) -> None:
        """Count what the checkpoint has behind it that has been loaded; releases never become fewer."""
        completed, last = self._behind
        if self.repeats:
            self.releases = completed
        elif last is None:  # of a version without ledgers
            self.count(completed)
        else:
            self._ledger.check(*last)
            self.releases = self._ledger.releases

    def count(self, releases: int) -> None:
        """Count so many releases, where fewer are counted, of a run that was begun without a ledger."""
        while not self.repeats and self._ledger.releases < releases:
            self._ledger.add(self._ledger.releases + 1)
        self.releases = self.releases if self.repeats else self._ledger.releases

    def epsilon(self, releases: int | None = None) -> float:
        """Epsilon at the settings' delta after so many releases; by default those so far."""
        count = self.releases if releases is None else releases
        return epsilon(self._divergence, count, self._settings.delta)

    def _noise(self, size: int, purpose: str, round: int, deviation: float) -> Tensor:
        """``[size]`` normal numbers by Box and Muller's method."""
        half = -(-size // 2)
        uniform = self._uniform(2 * half, purpose, round)
        radius, angle = np.sqrt(-2 * np.log1p(-uniform[:half])), 2 * math.pi * uniform[half:]
        normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:size]
        return torch.from_numpy(deviation * normal).to(self.run.task.dtype)

    def _uniform(self, size: int, purpose: str, round: int) -> NDArray[np.float64]:
        """``[size]`` numbers in [0, 1)."""
        if self._settings.randomness == "seed":
            return generator(self.run.settings.seed, f"privacy {purpose}", round).random(size)
        words = np.frombuffer(os.urandom(8 * size), np.uint64)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _largest(quantile: float) -> float:
    """What a client adds to a count, or takes off it, at most."""
    return max(quantile, 1 - quantile)
