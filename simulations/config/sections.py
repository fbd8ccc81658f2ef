"""Sections of an experiment's configuration, each with its own keys, defaults and meaning."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedpart.hyperparameters import ConcreteMask

PositiveNumber = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A group of keys; unknown ones are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LocalSection(Section):
    """How a client trains: SGD on its shard."""

    learning_rate: float = Field(default=0.05, gt=0, description="of local SGD")
    batch_size: int = Field(default=64, ge=1, description="examples per local step")
    epochs: int = Field(default=1, ge=1, description="passes over the shard per round")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="of local SGD")
    weight_decay: float = Field(default=0.0, ge=0, description="of local SGD, for the last partition")
    decay_scaling: Literal["reciprocal", "square_root", "none"] = Field(
        default="reciprocal", description="how weight decay grows with 1 / (share of chunks 1..k) for w_k"
    )
    psi_batch: Literal["shard"] | Annotated[int, Field(ge=1)] = Field(
        default="shard",
        description="examples behind a client's psi gradient: the whole shard, or a number drawn at random",
    )


class ClipSection(Section):
    """Largest L2 norms of what a client uploads; what is longer is scaled down."""

    weights: PositiveNumber | list[PositiveNumber] = Field(
        description="of each partition's change: one number for all, or one per partition"
    )
    psi: PositiveNumber | None = Field(default=None, description="of the psi gradient; null: not clipped")


class PrivacySection(Section):
    """Differential privacy of clients; see docs/privacy.md."""

    noise_multiplier: float = Field(
        gt=0, description="standard deviation of the noise over the sensitivity of all that a client uploads"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="at which epsilon is reported")
    randomness: Literal["system", "seed"] = Field(
        default="system",
        description="of noise and cohorts: the operating system's, or the seed's, which clients know: for "
        "simulations that can be repeated",
    )


class AdamSection(Section):
    """The server's Adam on averaged updates (torch's, bias-corrected)."""

    learning_rate: float = Field(default=1e-3, gt=0, description="of the server's Adam")
    eps: float = Field(default=1e-8, gt=0, description="Adam's epsilon")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), description="Adam's decay of the first and second moment"
    )


class PsiAdamSection(AdamSection):
    """The server's Adam on averaged psi gradients."""

    learning_rate: float = Field(default=3e-3, gt=0, description="of the server's Adam on psi")


class SplitSection(Section):
    """How the training points are divided among the clients."""

    recipe: str = Field(
        default="per_label",
        description="per_label: each label is spread over clients by a Dirichlet draw, sizes differ; "
        "per_client: each client's label mixture is drawn, sizes equal; per_client_total: as per_client with "
        "alpha shared by the labels; iid; or package.module:callable (groups, clients, alpha, seed)",
    )
    alpha: float = Field(default=0.1, gt=0, description="Dirichlet concentration; small is skewed")
    by: Literal["label", "angle"] = Field(
        default="label", description="what is skewed: labels, or (rotated data) angle bins"
    )
    bins: int = Field(default=10, ge=1, description="number of angle bins")


class AffineSection(Section):
    """Learned affine augmentation of images."""

    family: Literal["minmax", "centred", "augerino", "lila"] = Field(
        default="minmax",
        description="14 numbers (minmax, or centred: centre and half-width) or 6 (augerino, lila)",
    )
    initial: float | list[float] | None = Field(
        default=None,
        description="where the ranges start: half-widths around the identity (minmax, centred, lila), or raw "
        "widths (augerino)",
    )
    align_corners: bool = Field(
        default=True, description="whether coordinates -1 and 1 are pixel centres or edges"
    )
    padding: Literal["zeros", "border", "reflection"] = Field(
        default="zeros", description="what lies outside of the image"
    )


class MaskSection(Section):
    """A mask over the numbers of an input: which of them the network sees, chosen or learned."""

    kept: int | list[int] | None = Field(
        default=None,
        description="a fixed mask: how many of the first inputs are kept, or 0 or 1 for each; null: learned",
    )
    probability: float = Field(
        default=0.5, gt=0, lt=1, description="of a learned mask: initial probability to keep each input"
    )
    temperature: float = Field(
        default=inspect.signature(ConcreteMask).parameters["temperature"].default,
        gt=0,
        description="of a learned mask's concrete relaxation",
    )


class DropoutSection(Section):
    """Learned (concrete) dropout inside the model, for builders that take `dropout` and `temperature`."""

    rate: float = Field(
        default=0.1, gt=0, lt=1, description="initial drop rate of every dropout layer, a fraction"
    )
    temperature: float = Field(default=0.1, gt=0, description="of the concrete relaxation")


class TransformSection(Section):
    """A learned input transform of your own; in short form just its ``package.module:callable``."""

    use: str = Field(
        description="package.module:callable, a HyperModule subclass or a function that returns one; it may "
        "lie in the current folder"
    )
    name: str | None = Field(
        default=None, description="its name in psi; default: its class's, e.g. color_shift"
    )
    options: dict[str, Any] = Field(default={}, description="keyword arguments of the callable")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    @field_validator("use")
    @classmethod
    def _importable(cls, value: str) -> str:
        if ":" not in value:
            raise ValueError("a transform is given as package.module:callable")
        return value


class HyperparameterSection(Section):
    """What is learned besides the weights (psi).

    A bare ``package.module:callable``, or a list of them, stands for ``{affine: null, transforms: [...]}``.
    HyperModule layers inside a model of your own are learned without being named here.
    """

    affine: AffineSection | None = Field(
        default=AffineSection(), description="affine augmentation of images; null for none"
    )
    mask: MaskSection | None = Field(
        default=None, description="mask over the inputs, chosen or learned; null for none"
    )
    dropout: DropoutSection | None = Field(
        default=DropoutSection(), description="dropout layers of the model; null for none"
    )
    transforms: list[TransformSection] = Field(
        default=[], description="input transforms of your own, after the affine one and the mask"
    )
    names: list[str] = Field(
        default=[],
        description="parameters of the model that are hyperparameters, by name, with * and ? as wildcards",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        return {"affine": None, "transforms": value} if isinstance(value, list) else value
