"""Settings of a federated run, which server and clients share, and of centralised training: plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Literal

from fedpart.parameters.assigned import Defaults
from fedpart.parameters.proportions import check_proportions
from fedpart.training.optimisers import DECAY_POWERS, AdamSettings, OptimiserSettings, weight_decays
from fedpart.training.safeguards import LARGEST_COUNT, ClipSettings, PrivacySettings, check_safeguards


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains: torch's SGD on its shard, from the server's values in every round.

    Attributes:
        learning_rate, batch_size, epochs: of local SGD (App. J.2: 5e-2, 64, 1 on MNIST).
        momentum: of local SGD; the buffer starts anew in every round and for every partition.
        weight_decay: of local SGD, in a network trained on all chunks.
        decay_scaling: how much stronger it is for w_k, which sees chunks 1..k only: ``reciprocal`` of their
            share of the clients (I.1), ``square_root`` of that (I.4), or ``none`` (open point 6).
        psi_batch: examples behind a client's psi gradient: the whole ``shard`` (MNIST) or a number, drawn at
            random (CIFAR: one batch).
    """

    learning_rate: float = 5e-2
    batch_size: int = 64
    epochs: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_scaling: Literal["reciprocal", "square_root", "none"] = "reciprocal"
    psi_batch: Literal["shard"] | int = "shard"

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.epochs < 1 or not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"Local training needs batch_size >= 1, epochs >= 1 and learning_rate > 0, got {self}."
            )
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"Local training needs 0 <= momentum < 1 and weight_decay >= 0, got {self}.")
        if self.decay_scaling not in DECAY_POWERS:
            raise ValueError(
                f"decay_scaling is one of {', '.join(DECAY_POWERS)}, got {self.decay_scaling!r}."
            )
        if self.psi_batch != "shard" and not (isinstance(self.psi_batch, int) and self.psi_batch >= 1):
            raise ValueError(f"psi_batch is 'shard' or a number of examples, got {self.psi_batch!r}.")


@dataclass(frozen=True)
class FederationSettings:
    """Everything about a run but the task and the data; defaults are the paper's MNIST settings (App. J.2).

    Attributes:
        clients: N, numbered 0..N-1.
        method: a registered name, or ``package.module:Class``.
        method_options: keyword arguments of the method.
        chunks: u_1..u_C of the clients.
        parameters: u_1..u_C of the parameters; None: as ``chunks``.
        cohort: clients per round (the paper does not say; open point 1).
        seed: of everything but the data.
        local, server, server_psi: optimisers.
        weighting: of clients in averages of weights, by ``examples`` or ``uniform`` (open point 2); psi
            gradients are sums over examples, always.
        non_contributors: ``ignore``: a partition's mean is over the clients that trained it; ``zero``: the
            rest of the cohort counts as no change (open point 2); weighted by examples, it lets the sizes,
            though not the data, of later chunks' shards reach earlier partitions.
        scheme, defaults, chain: see :class:`.Partition`.
        device: where models are computed.
        on_client_error: ``fail`` ends the run at a client's exception or refused upload; ``skip`` goes on
            without that client.
        max_examples: that a client may claim to have.
        min_replies: updates without which a round does not step.
        round_timeout: seconds that clients on other machines have for a round.
        node_timeout: seconds for which clients that are not connected are waited for.
        clip: norms to which updates are clipped, by the client and again by the server.
        trim: share of the clients whose values are left out at each end of every coordinate of the mean
            (Yin et al. 2018); None: the mean of all.
        privacy: differential privacy of clients.
    """

    clients: int
    method: str = "partitioned"
    method_options: Mapping[str, Any] = field(default_factory=dict)
    chunks: tuple[float, ...] = (0.7, 0.2, 0.1)
    parameters: tuple[float, ...] | None = None
    cohort: int = 10
    seed: int = 0
    local: LocalSettings = field(default_factory=LocalSettings)
    server: AdamSettings = field(default_factory=AdamSettings)
    server_psi: AdamSettings = field(default_factory=lambda: AdamSettings(3e-3))
    weighting: Literal["examples", "uniform"] = "examples"
    non_contributors: Literal["ignore", "zero"] = "ignore"
    scheme: Literal["random", "node"] = "random"
    defaults: Defaults = "initial"
    chain: tuple[str, ...] | None = None
    device: str = "cpu"
    on_client_error: Literal["fail", "skip"] = "fail"
    max_examples: int = LARGEST_COUNT
    min_replies: int = 1
    round_timeout: float = 3600.0
    node_timeout: float = 600.0
    clip: ClipSettings | None = None
    trim: float | None = None
    privacy: PrivacySettings | None = None

    def __post_init__(self) -> None:
        _check_proportions(self)
        if not 1 <= self.cohort <= self.clients:
            raise ValueError(
                f"The cohort must be between 1 and the number of clients ({self.clients}), got {self.cohort}."
            )
        for name, options in _CHOICES.items():
            if getattr(self, name) not in options:
                raise ValueError(f"{name} is one of {' or '.join(options)}, got {getattr(self, name)!r}.")
        check_safeguards(self)

    @property
    def separate(self) -> bool:
        """Whether every client's update is looked at or changed before it is in the sum."""
        return self.clip is not None or self.trim is not None


@dataclass(frozen=True)
class TrainingSettings:
    """Everything about centralised training but the task and the data; defaults are App. I.4's for MNIST.

    Attributes:
        iterations: of the method's schedule, without finetuning.
        method, method_options: see :class:`FederationSettings`.
        chunks: u_1..u_C of the examples.
        parameters: u_1..u_C of the parameters; None: as ``chunks``.
        batch_size: examples of a parameter step, drawn with replacement (I.1).
        psi_batch_size: examples of a psi step; None: as ``batch_size``.
        psi_every: iterations from one psi step to the next; more than 1 is cheaper (I.1). Augerino, which
            takes w's and psi's gradient from one loss, steps psi in every iteration, on w's batch.
        seed: of everything but the data.
        optimiser, optimiser_psi: of the parameters (a state per partition) and of psi.
        weight_decay: of the parameters, in a network trained on all chunks.
        decay_scaling: see :class:`LocalSettings` (open point 6).
        schedule: of the parameters' learning rate, on total iterations: ``constant``, or ``cosine`` down to
            ``final_rate`` times the first (I.4: 0.01), reached after ``schedule_iterations`` (None: all).
        keep_best: early stopping: end with the weights and psi whose L_ML was best among the reports (I.4).
            The largest of many values is biased upwards, and all chunks have a say in when w_1 stops.
        scheme, defaults, chain: see :class:`.Partition`.
        device: where models are computed.

    Raises:
        ValueError: a value out of range.
    """

    iterations: int = 10_000
    method: str = "partitioned"
    method_options: Mapping[str, Any] = field(default_factory=dict)
    chunks: tuple[float, ...] = (0.8, 0.1, 0.1)
    parameters: tuple[float, ...] | None = None
    batch_size: int = 200
    psi_batch_size: int | None = None
    psi_every: int = 1
    seed: int = 0
    optimiser: OptimiserSettings = field(default_factory=AdamSettings)
    optimiser_psi: OptimiserSettings = field(default_factory=AdamSettings)
    weight_decay: float = 0.0
    decay_scaling: Literal["reciprocal", "square_root", "none"] = "reciprocal"
    schedule: Literal["constant", "cosine"] = "constant"
    final_rate: float = 0.01
    schedule_iterations: int | None = None
    keep_best: bool = False
    scheme: Literal["random", "node"] = "random"
    defaults: Defaults = "initial"
    chain: tuple[str, ...] | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        _check_proportions(self)
        counts = {
            "iterations": self.iterations,
            "batch_size": self.batch_size,
            "psi_batch_size": self.psi_batch_size,
            "psi_every": self.psi_every,
            "schedule_iterations": self.schedule_iterations,
        }
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ValueError(f"{name} is at least 1, got {count}.")
        for name in ("optimiser", "optimiser_psi"):
            if not isinstance(getattr(self, name), OptimiserSettings):
                raise ValueError(
                    f"{name} is one of SGDSettings(...), AdamSettings(...) or AdamWSettings(...), got "
                    f"{getattr(self, name)!r}."
                )
        if not 0 < self.final_rate <= 1:
            raise ValueError(
                f"final_rate is the last learning rate over the first, in (0, 1], got {self.final_rate}."
            )
        if self.schedule not in ("constant", "cosine"):
            raise ValueError(f"schedule is one of constant or cosine, got {self.schedule!r}.")
        weight_decays(self.weight_decay, self.chunks, self.decay_scaling)  # refuses

    def may_grow(self, stages: Sized) -> bool:
        """Whether a run with these stages may go on for longer: nothing in it depends on how long it is."""
        return self.schedule == "constant" and not self.keep_best and len(stages) == 1

    def rate(self, iteration: int) -> float:
        """The parameters' learning rate in ``iteration`` (1..), of the first (I.1: on total iterations)."""
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (iteration - 1) / (self.schedule_iterations or self.iterations))
        return self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * done)) / 2


def _check_proportions(settings: FederationSettings | TrainingSettings) -> None:
    """Proportions of chunks and parameters, as tuples of floats of one length."""
    object.__setattr__(settings, "chunks", check_proportions(settings.chunks))
    if settings.parameters is not None:
        parameters = check_proportions(settings.parameters, "parameter proportions")
        object.__setattr__(settings, "parameters", parameters)
        if len(parameters) != len(settings.chunks):
            raise ValueError(
                f"There are {len(settings.chunks)} chunk proportions but {len(parameters)} parameter "
                f"proportions; give one of each per chunk."
            )


_CHOICES = {
    "weighting": ("examples", "uniform"),
    "non_contributors": ("ignore", "zero"),
    "on_client_error": ("fail", "skip"),
}
