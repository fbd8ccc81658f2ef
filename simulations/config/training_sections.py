"""Sections of a centralised experiment's configuration, each with its own keys, defaults and meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedpart.training.optimisers import AdamSettings, AdamWSettings, OptimiserSettings, SGDSettings
from simulations.config.sections import Section

_ONLY_SGD, _ONLY_ADAM = ("momentum",), ("betas", "eps")


class OptimiserSection(Section):
    """An optimiser."""

    name: Literal["adam", "adamw", "sgd"] = Field(default="adam", description="adam, adamw or sgd")
    learning_rate: float = Field(default=1e-3, gt=0, description="of the optimiser")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="of sgd")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), description="Adam's decay of the first and second moment"
    )
    eps: float = Field(default=1e-8, gt=0, description="Adam's epsilon")

    @model_validator(mode="after")
    def _no_idle_key(self) -> Self:
        for key in _ONLY_ADAM if self.name == "sgd" else _ONLY_SGD:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{self.name} has no {key}; leave it out, or choose another optimiser")
        return self

    def settings(self) -> OptimiserSettings:
        """The optimiser in the library's terms."""
        if self.name == "sgd":
            return SGDSettings(self.learning_rate, self.momentum)
        kind = AdamWSettings if self.name == "adamw" else AdamSettings
        return kind(self.learning_rate, self.eps, self.betas)


class WeightOptimiserSection(OptimiserSection):
    """The optimiser of the weights, one state per partition, with their decay."""

    weight_decay: float = Field(default=0.0, ge=0, description="of the last partition")
    decay_scaling: Literal["reciprocal", "square_root", "none"] = Field(
        default="reciprocal", description="how weight decay grows with 1 / (share of chunks 1..k) for w_k"
    )


class ScheduleSection(Section):
    """How the weights' learning rate changes over iterations."""

    shape: Literal["constant", "cosine"] = Field(default="constant", description="constant or cosine")
    final_rate: float = Field(
        default=0.01, gt=0, le=1, description="of cosine: last learning rate over the first"
    )
    iterations: int | None = Field(
        default=None, ge=1, description="of cosine: iterations until the last rate; null: all of the run's"
    )


class SelectSection(Section):
    """What `fedpart select` compares by its evidence."""

    key: str = Field(
        default="hyperparameters.mask.kept",
        description="the key of this configuration that takes each of the values",
    )
    values: list[Any] = Field(min_length=1, description="its values")
    seeds: int = Field(default=1, ge=1, description="repetitions, with seed and data_seed + 0, 1, ...")
    laplace: bool = Field(
        default=False,
        description="also train plain networks, judged (with keep_best: stopped early) by diagonal Laplace",
    )
    laplace_every: int = Field(
        default=150, ge=1, description="iterations between a plain network's reports; each costs seconds"
    )
