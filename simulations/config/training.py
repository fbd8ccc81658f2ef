"""TrainingConfig: everything that decides a centralised run."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from fedpart import TrainingSettings
from simulations.config.base import Clock, Config, Proportion
from simulations.config.training_sections import (
    OptimiserSection,
    ScheduleSection,
    SelectSection,
    WeightOptimiserSection,
)


class TrainingConfig(Config):
    """Centralised training; defaults are the paper's MNIST settings (App. I.4) with half its samples."""

    clock: ClassVar[Clock] = Clock("iteration", "iterations", "train", "centralised", "centralised training")
    rim: ClassVar[tuple[str, ...]] = (*Config.rim, "select")

    method: str = Field(
        default="partitioned",
        description="partitioned, none, augerino, validation, separate, or package.module:Class",
    )
    chunks: tuple[Proportion, ...] = Field(
        default=(0.8, 0.1, 0.1), description="proportions u of the chunks of the training data, sum 1"
    )
    iterations: int = Field(
        default=10_000, ge=1, description="iterations of training: a step on weights, then one on psi"
    )
    batch_size: int = Field(default=200, ge=1, description="examples per step on weights")
    psi_batch_size: int | None = Field(
        default=None, ge=1, description="examples per step on psi; null: as batch_size"
    )
    psi_every: int = Field(
        default=1,
        ge=1,
        description="iterations from one step on psi to the next; augerino steps it in every one",
    )
    optimiser: WeightOptimiserSection = Field(default=WeightOptimiserSection(), description="of the weights")
    optimiser_psi: OptimiserSection = Field(default=OptimiserSection(), description="of psi")
    schedule: ScheduleSection = Field(
        default=ScheduleSection(), description="of the weights' learning rate, on total iterations"
    )
    keep_best: bool = Field(
        default=False,
        description="end with the weights and psi whose evidence was best among the reports (early stopping)",
    )
    evidence: Literal["lml", "laplace"] = Field(
        default="lml",
        description="what reports and early stopping are judged by: lml (L_ML), or laplace (diagonal Laplace "
        "evidence of the network; needs fedpart[laplace])",
    )
    select: SelectSection | None = Field(
        default=None, description="what `fedpart select` varies; `fedpart train` does not look at it"
    )
    evaluate_every: int = Field(
        default=100,
        ge=1,
        description="iterations between reports: evidence and validation; the end has one too",
    )
    checkpoint_every: int = Field(default=1000, ge=1, description="iterations between checkpoints")

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        self.settings()
        return self

    @property
    def may_grow(self) -> bool:
        return self.settings().may_grow(self.build_method().stages(self.iterations, 1, 1))

    def settings(self) -> TrainingSettings:
        """The run in the library's terms."""
        return TrainingSettings(
            **self.shared_settings(),
            iterations=self.iterations,
            batch_size=self.batch_size,
            psi_batch_size=self.psi_batch_size,
            psi_every=self.psi_every,
            optimiser=self.optimiser.settings(),
            optimiser_psi=self.optimiser_psi.settings(),
            weight_decay=self.optimiser.weight_decay,
            decay_scaling=self.optimiser.decay_scaling,
            schedule=self.schedule.shape,
            final_rate=self.schedule.final_rate,
            schedule_iterations=self.schedule.iterations,
            keep_best=self.keep_best,
        )
