"""ExperimentConfig: everything that decides a federated run."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedpart import AdamSettings, ClipSettings, FederationSettings, LocalSettings, PrivacySettings
from fedpart.data import SPLITS
from fedpart.federated.assignment import check_clients
from fedpart.training.safeguards import LARGEST_COUNT, check_checkpoints, check_feedback
from simulations.config.base import Clock, Config, Proportion
from simulations.config.errors import check_name
from simulations.config.published import Published
from simulations.config.sections import (
    AdamSection,
    ClipSection,
    LocalSection,
    PrivacySection,
    PsiAdamSection,
    SplitSection,
)


class ExperimentConfig(Config):
    """A federated experiment; defaults are the paper's MNIST settings where it states them (App. J.2)."""

    clock: ClassVar[Clock] = Clock("round", "rounds", "run", "federated", "federated experiments")
    rim: ClassVar[tuple[str, ...]] = (
        *Config.rim,
        "engine",
        "workers",
        "ray_address",
        "published",
        "round_timeout",
        "node_timeout",
    )

    method: str = Field(
        default="partitioned", description="partitioned, fedavg, augerino, fedex, or package.module:Class"
    )
    chunks: tuple[Proportion, ...] = Field(
        default=(0.7, 0.2, 0.1), description="proportions u of the clients' chunks, sum 1"
    )
    rounds: int = Field(default=100, ge=1, description="rounds of federated training")
    clients: int = Field(default=100, ge=1, description="N, number of clients")
    cohort: int = Field(default=10, ge=1, description="clients per round")
    weighting: Literal["examples", "uniform"] = Field(
        default="examples", description="weights of clients in averages"
    )
    non_contributors: Literal["ignore", "zero"] = Field(
        default="ignore",
        description="whether clients that did not train a partition count as no change in its average",
    )
    local: LocalSection = Field(default=LocalSection(), description="clients' training")
    server: AdamSection = Field(default=AdamSection(), description="the server's Adam on the weights")
    server_psi: PsiAdamSection = Field(default=PsiAdamSection(), description="the server's Adam on psi")
    split: SplitSection = Field(default=SplitSection(), description="how clients share the training points")

    engine: Literal["local", "ray", "flower"] = Field(
        default="local",
        description="local: this process; ray: Flower's apps on Ray actors; flower: what `flwr run` records",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="processes that run the clients; null: 1 with engine local, one per CPU core with ray",
    )
    execution: Literal["loop", "vectorised", "fused"] = Field(
        default="loop",
        description="how engine local computes a cohort: client by client; several clients at a time, for a "
        "GPU; or its data together, where each client takes one step and nothing looks at its own update",
    )
    ray_address: str | None = Field(
        default=None,
        description="of a running Ray cluster, for engine ray: host:port, or auto for one that this machine "
        "is in; null: start one here",
    )
    on_client_error: Literal["fail", "skip"] | None = Field(
        default=None,
        description="whether a client's error or refused upload ends the run, or the round goes on without "
        "it; null: skip with engine flower, where clients come and go, fail with the others",
    )
    max_examples: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST_COUNT,
        description="that a client may claim to have; null: as many as the largest shard has",
    )
    min_replies: int = Field(
        default=1, ge=1, description="updates without which a round leaves weights and psi as they are"
    )
    round_timeout: float = Field(
        default=3600.0, gt=0, description="seconds that clients on other machines have for a round"
    )
    node_timeout: float = Field(
        default=600.0, ge=0, description="seconds for which clients that are not connected are waited for"
    )
    clip: ClipSection | None = Field(
        default=None, description="norms to which clients' updates are clipped; null: none"
    )
    trim: float | None = Field(
        default=None,
        gt=0,
        lt=0.5,
        description="share of the clients whose values are left out at each end of every coordinate of the "
        "mean; null: the mean of all",
    )
    privacy: PrivacySection | None = Field(
        default=None, description="differential privacy of clients; null: none"
    )
    evaluate_every: int = Field(
        default=10, ge=1, description="rounds between evaluations; the last round is always evaluated"
    )
    evaluation_samples: int | None = Field(
        default=None, ge=1, description="S in evaluations, at most `samples`; null: as `samples`"
    )
    full_validation_rounds: int = Field(
        default=0,
        ge=0,
        description="so many last rounds are evaluated on all validation data, whatever validation_points",
    )
    checkpoint_every: int = Field(default=10, ge=1, description="rounds between checkpoints")
    published: str | None = Field(
        default=None,
        description="the cell of the paper's Table 4 that this repeats, e.g. mnist-1.25k; compare and report "
        "put its numbers beside ours",
    )

    @field_validator("published")
    @classmethod
    def _published(cls, value: str | None) -> str | None:
        if value is not None:
            Published.of(value)
        return value

    @field_validator("split")
    @classmethod
    def _split(cls, value: SplitSection) -> SplitSection:
        check_name(value.recipe, SPLITS)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ExperimentConfig:
        check_checkpoints(self.settings(), self.checkpoint_every)
        method = self.build_method()
        check_feedback(self.settings(), method)
        check_clients(len(method.proportions(self.chunks)), self.clients)
        if self.execution != "loop" and (self.engine != "local" or self.processes != 1):
            raise ValueError(
                f"execution: {self.execution} is for engine local with one worker; set execution: loop, or "
                f"engine: local and workers: 1"
            )
        if self.engine == "local" and self.processes != 1 and self.threads != 1:
            raise ValueError(
                f"{self.processes} workers of engine local have one torch thread each; set threads: 1, or "
                f"workers: 1"
            )
        if self.ray_address is not None and self.engine != "ray":
            raise ValueError("ray_address is for engine ray; set engine: ray, or leave it out")
        if self.split.by == "angle" and not self.rotated:
            raise ValueError(
                "split.by is angle, but the data are not rotated; set rotated: true or split.by: label"
            )
        return self

    @property
    def processes(self) -> int | None:
        """How many processes run the clients; None: as many as the Ray cluster has CPU cores."""
        return 1 if self.workers is None and self.engine == "local" else self.workers

    def recorded(self, until: int) -> range:
        return range(1, until + 1)

    def settings(self) -> FederationSettings:
        """The part that server and clients share, in the library's terms."""

        def adam(section: AdamSection) -> AdamSettings:
            return AdamSettings(section.learning_rate, section.eps, section.betas)

        return FederationSettings(
            **self.shared_settings(),
            clients=self.clients,
            cohort=self.cohort,
            local=LocalSettings(**self.local.model_dump()),
            server=adam(self.server),
            server_psi=adam(self.server_psi),
            weighting=self.weighting,
            non_contributors=self.non_contributors,
            on_client_error=self.on_client_error or ("skip" if self.engine == "flower" else "fail"),
            max_examples=LARGEST_COUNT if self.max_examples is None else self.max_examples,
            min_replies=self.min_replies,
            round_timeout=self.round_timeout,
            node_timeout=self.node_timeout,
            clip=None if self.clip is None else ClipSettings(**self.clip.model_dump()),
            trim=self.trim,
            privacy=None if self.privacy is None else PrivacySettings(**self.privacy.model_dump()),
        )
