"""Sections of a configuration: those that are no settings of the library, or group them in another way."""

import inspect
from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from fedpart import AdamSettings, AdamWSettings, SGDSettings, TrainingSettings
from fedpart.data import SPLITS
from fedpart.loggers import LOGGERS
from fedpart.nn.hyperparameters import TRANSFORMS, ConcreteMask
from fedpart.nn.hyperparameters.affine import Family
from fedpart.training.local import LocalSettings
from fedpart.training.optimisers import DecaySettings, OptimiserSettings
from simulations.attacks import ATTACKS, Attack
from simulations.config.keys import Section, entry, section_of
from simulations.config.messages import check_options, named

Padding = Literal["zeros", "border", "reflection"]


class NormaliseSection(Section):
    """Mean and standard deviation of each channel, which images are brought to 0 and 1 by."""

    mean: list[float] = entry(..., "of each channel, where pixels are in [0, 1]", min_length=1)
    std: list[float] = entry(..., "of each channel, above 0", min_length=1)


class SplitSection(Section):
    """How the training points are divided among the clients."""

    recipe: named(SPLITS) = entry(
        "per_label",
        "per_label: each label is spread over clients by a Dirichlet draw, sizes differ; per_client: each "
        "client's label mixture is drawn, sizes equal; per_client_total: as per_client with alpha shared by "
        "the labels; per_client_shares: such mixtures, each label dealt in proportion, sizes differ; "
        "per_client_subset: as if a random subset of 50,000 dealt by per_client_total; iid; natural: as the "
        "data set says, which is the default where it knows its clients; "
        "or package.module:callable (groups, clients, alpha, seed)",
    )
    alpha: float = entry(0.1, "Dirichlet concentration; small is skewed", gt=0)
    by: Literal["label", "angle"] = entry("label", "what is skewed: labels, or (rotated data) ten angle bins")


class AffineSection(Section):
    """Learned affine augmentation of images."""

    family: Family = entry(
        "lila",
        "lila (6 half-widths), symmetric (7), augerino (6 raw widths): ranges around the identity; "
        "minmax, centred (centre and half-width), schwobel: 14 numbers, with free centres",
    )
    initial: float | list[float] | dict[str, float] | None = entry(
        None,
        "where the ranges start: half-widths around the identity, or raw widths (augerino); one number, "
        "one for each component, or {component: number}",
    )
    padding: Padding = entry("zeros", "what lies outside of the image")


class MaskSection(Section):
    """A mask over the numbers of an input: which of them the network sees, chosen or learned."""

    kept: int | list[int] | None = entry(
        None, "a fixed mask: how many of the first inputs are kept, or 0 or 1 for each; null: learned"
    )
    probability: float = entry(0.5, "of a learned mask: initial probability to keep each input", gt=0, lt=1)
    temperature: float = entry(
        inspect.signature(ConcreteMask).parameters["temperature"].default,
        "of a learned mask's concrete relaxation",
        gt=0,
    )


class DropoutSection(Section):
    """Learned (concrete) dropout inside the model, for builders that take `dropout`."""

    rate: float = entry(0.1, "initial drop rate of every dropout layer, a fraction", gt=0, lt=1)


class AttackSection(Section):
    """What hostile clients do, in simulations."""

    kind: named(ATTACKS) = entry(
        ...,
        "sign, scale, labels (wrong ones), little (a little is enough), inner (inner product manipulation), "
        "psi (its gradient alone), constant, nan, or package.module:Class",
    )
    share: float = entry(0.1, "of the clients that attack, of psi of those who send its gradient", gt=0, lt=1)
    options: dict[str, Any] = entry({}, "keyword arguments of the attack, e.g. {scale: 10}")
    once: int | None = entry(
        None, "each attacks once, in its first round from this one on; null: in all of its rounds", ge=1
    )

    @model_validator(mode="after")
    def _known(self) -> "AttackSection":
        attack = ATTACKS.resolve(self.kind)
        check_options(attack, self.options, f"the attack {self.kind!r}")
        if self.once is not None and getattr(attack, "shard", None) is not Attack.shard:
            fault = f"The attack {self.kind!r} is on the clients' data"
            raise ValueError(f"{fault}, which they have in every round; leave attack.once out.")
        return self


class NamedSection(Section):
    """Something that is used by its name, with options; in short form just the name."""

    use: str
    options: dict[str, Any] = entry({}, "keyword arguments of the callable")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value


class LoggerSection(NamedSection):
    """A logger; in short form just what it uses."""

    use: str = entry(
        ...,
        f"{', '.join(LOGGERS.names())}; or package.module:callable, a fedpart.loggers.Logger, or a function "
        f"of a line of metrics.jsonl, which may lie beside the configuration",
    )

    @model_validator(mode="after")
    def _known(self) -> "LoggerSection":
        if ":" not in self.use:
            check_options(LOGGERS.resolve(self.use), self.options, f"the logger {self.use!r}")
        return self


class TransformSection(NamedSection):
    """A learned input transform; in short form just what it uses."""

    use: str = entry(
        ...,
        f"{', '.join(TRANSFORMS.names())}; or package.module:callable, a HyperModule subclass or a function "
        f"that returns one, which may lie beside the configuration",
    )
    part: str | int | None = entry(
        None, "which part of inputs it acts on, where they are a dict (its key) or a tuple (its place)"
    )

    @field_validator("use")
    @classmethod
    def _known(cls, value: str) -> str:
        if ":" not in value:
            TRANSFORMS.resolve(value)
        return value


class HyperparameterSection(Section):
    """What is learned besides the weights (psi): only the kinds that are written.

    A bare name of a transform, or a list of them, stands for ``{transforms: [...]}``.
    HyperModule layers inside a model of your own are learned without being named here."""

    affine: AffineSection | None = entry(None, "affine augmentation of images; {} takes its defaults")
    mask: MaskSection | None = entry(None, "mask over the inputs, chosen or learned; {}: learned")
    dropout: DropoutSection | None = entry(None, "dropout layers of the model; {} takes its defaults")
    transforms: list[TransformSection] = entry(
        [], "further input transforms, after the affine one and the mask"
    )
    learn_dropout: bool = entry(False, "whether the rates of the model's nn.Dropout layers are learned")
    names: list[str] = entry(
        [], "parameters of the model that are hyperparameters, by name, with * and ? as wildcards"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        return {"transforms": value} if isinstance(value, list) else value


class LocalSection(section_of(LocalSettings), section_of(DecaySettings, leave_out=("decay_scaling",))):
    """How a client trains: torch's SGD on its shard, from the server's values in every round."""

    def settings(self) -> LocalSettings:
        return LocalSettings(**dict(self))


class OptimiserSection(section_of(AdamSettings, learning_rate="learning_rate")):
    """An optimiser."""

    name: Literal["adam", "adamw", "sgd"] = entry("adam", "adam, adamw or sgd")

    @model_validator(mode="after")
    def _no_idle_key(self) -> Self:
        for name in ("eps",) if self.name == "sgd" else ("momentum",):
            key = type(self).model_fields.get(name)
            if key is not None and getattr(self, name) != key.default:
                raise ValueError(f"{self.name} has no {name}; leave it out, or choose another optimiser")
        return self

    def settings(self) -> OptimiserSettings:
        if self.name == "sgd":
            return SGDSettings(self.learning_rate, getattr(self, "momentum", 0.0))
        return (AdamWSettings if self.name == "adamw" else AdamSettings)(self.learning_rate)


class ServerSection(section_of(AdamSettings, eps="eps"), OptimiserSection):
    """The server's optimiser."""

    name: Literal["adam", "sgd"] = entry("adam", "adam, or sgd: at a rate of 1, its default, the plain mean")

    @model_validator(mode="before")
    @classmethod
    def _plain_mean(cls, data: Any) -> Any:
        """The rate of sgd where none is given: a step to the mean of the clients' weights."""
        plain = isinstance(data, dict) and data.get("name") == "sgd" and "learning_rate" not in data
        return {**data, "learning_rate": 1.0} if plain else data

    def settings(self) -> AdamSettings | SGDSettings:
        settings = super().settings()
        return replace(settings, eps=self.eps) if isinstance(settings, AdamSettings) else settings


class PsiOptimiserSection(section_of(AdamSettings, learning_rate="learning_rate")):
    """The optimiser of psi, which is Adam."""

    def settings(self) -> AdamSettings:
        return AdamSettings(self.learning_rate)


class PsiServerSection(section_of(AdamSettings, hypergradient="hypergradient")):
    """The server's optimiser of psi, which is Adam with the server's eps."""

    learning_rate: float = entry(3e-3, "of the optimiser", gt=0)

    def settings(self, eps: float) -> AdamSettings:
        return AdamSettings(self.learning_rate, eps, hypergradient=self.hypergradient)


class WeightOptimiserSection(
    section_of(TrainingSettings, scalars="scalars"),
    section_of(DecaySettings),
    section_of(SGDSettings, momentum="momentum"),
    OptimiserSection,
):
    """The optimiser of the weights, one state per partition, with their decay."""


class SelectSection(Section):
    """What `fedpart select` compares by its evidence."""

    key: str = entry("hyperparameters.mask.kept", "the key of this configuration that takes the values")
    values: list[Any] = entry(..., "its values", min_length=1)
    seeds: int = entry(1, "repetitions, with seed and data_seed + 0, 1, ...", ge=1)
