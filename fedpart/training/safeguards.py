"""Settings that bound what one client can do to a run, and what a run tells about one client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fedpart.methods.base import Method
    from fedpart.training.settings import FederationSettings

LARGEST_COUNT = 10**9  # examples; weighted by that many, the largest values that are taken are still finite


@dataclass(frozen=True)
class ClipSettings:
    """Largest L2 norms of what a client uploads; what is longer is scaled down.

    Attributes:
        weights: of the change of each partition: one number for all, or one per partition.
        psi: of the psi gradient, nats per example and unit of psi; None: not clipped.
    """

    weights: float | tuple[float, ...]
    psi: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.weights, (int, float)):
            object.__setattr__(self, "weights", tuple(self.weights))
        given = [*self._listed(), *([] if self.psi is None else [self.psi])]
        if not given or not all(0 < norm < math.inf for norm in given):
            raise ValueError(f"Norms to clip to are positive numbers, got {self}.")

    def norms(self, chunks: int) -> tuple[float, ...]:
        """The norm of each of C partitions.

        Raises:
            ValueError: it is given for another number of partitions.
        """
        listed = self._listed()
        if isinstance(self.weights, tuple) and len(listed) != chunks:
            raise ValueError(
                f"clip.weights has {len(listed)} norms for {chunks} partitions; give one per partition, or "
                f"one number for all."
            )
        return tuple(listed) if isinstance(self.weights, tuple) else tuple(listed) * chunks

    def _listed(self) -> Sequence[float]:
        return self.weights if isinstance(self.weights, tuple) else [self.weights]


@dataclass(frozen=True)
class PrivacySettings:
    """Differential privacy of clients, by Gaussian noise on clipped sums; see ``docs/privacy.md``.

    Attributes:
        noise_multiplier: z, the noise's standard deviation over the sensitivity of all that a client uploads.
        delta: at which epsilon is reported.
        randomness: of noise and cohorts: the operating ``system``'s; or the run's ``seed``, which can be
            repeated, and undone by everybody who knows the seed, as clients do: for simulations.
    """

    noise_multiplier: float
    delta: float = 1e-5
    randomness: Literal["system", "seed"] = "system"

    def __post_init__(self) -> None:
        if not 0 < self.noise_multiplier < math.inf or not 0 < self.delta < 1:
            raise ValueError(f"Privacy needs noise_multiplier > 0 and 0 < delta < 1, got {self}.")
        if self.randomness not in ("system", "seed"):
            raise ValueError(f"randomness is one of system or seed, got {self.randomness!r}.")


def check_safeguards(settings: FederationSettings) -> None:
    """Refuse safeguards that make no sense, or not with each other.

    Raises:
        ValueError: one sentence.
    """
    if not 1 <= settings.max_examples <= LARGEST_COUNT:
        raise ValueError(
            f"max_examples is between 1 and {LARGEST_COUNT} examples, got {settings.max_examples}."
        )
    if not 1 <= settings.min_replies <= settings.cohort:
        raise ValueError(
            f"min_replies is between 1 and the cohort ({settings.cohort}), got {settings.min_replies}."
        )
    if not 0 < settings.round_timeout < math.inf:
        raise ValueError(f"round_timeout is a number of seconds above 0, got {settings.round_timeout}.")
    if not 0 <= settings.node_timeout < math.inf:
        raise ValueError(f"node_timeout is a number of seconds from 0 on, got {settings.node_timeout}.")
    if settings.trim is not None:
        if not 0 < settings.trim < 0.5:
            raise ValueError(f"trim is a share of the clients between 0 and 0.5, got {settings.trim}.")
        _needs(settings, "A trimmed mean", "counts clients, not examples")
    if settings.privacy is not None:
        _needs(settings, "Privacy", "has to bound the weight of a client")
        if settings.clip is None:
            raise ValueError("Privacy needs norms to clip to; set clip.weights, and clip.psi for psi.")
        if settings.trim is not None:
            raise ValueError("Privacy adds noise to a sum, which a trimmed mean is not; leave trim out.")
        if settings.min_replies != 1:
            raise ValueError(
                f"Privacy steps in every round, whoever has answered, but min_replies is "
                f"{settings.min_replies}; leave it at 1."
            )


def check_feedback(settings: FederationSettings, method: Method) -> None:
    """Refuse safeguards that change psi's sum where clients add feedback to it, counts included.

    Raises:
        ValueError: one sentence.
    """
    used = [name for name in ("trim", "privacy") if getattr(settings, name) is not None]
    if settings.clip is not None and settings.clip.psi is not None:
        used.append("clip.psi")
    if method.held_out and used:
        raise ValueError(
            f"The method {settings.method!r} scores by examples that clients hold out and needs the sums of "
            f"their scores and counts, which {used[0]} does not leave as they are; leave {used[0]} out, or "
            f"use another method."
        )


def check_checkpoints(settings: FederationSettings, every: int) -> None:
    """Refuse to save less often than privacy is spent, for rounds computed twice would be counted once.

    Raises:
        ValueError: one sentence.
    """
    if settings.privacy is not None and settings.privacy.randomness == "system" and every != 1:
        raise ValueError(
            f"A round that is computed again after a crash spends privacy again, but checkpoint_every is "
            f"{every}; set it to 1."
        )


def _needs(settings: FederationSettings, what: str, why: str) -> None:
    """Both need clients of equal weight in averages over those that contribute."""
    if settings.weighting != "uniform":
        raise ValueError(f"{what} {why}; set weighting: uniform.")
    if settings.non_contributors != "ignore":
        raise ValueError(
            f"{what} is over the clients of a partition; leave non_contributors at ignore, not "
            f"{settings.non_contributors}."
        )
