"""Config: the keys that federated and centralised experiments share, and what every configuration can do."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from fedpart import METHODS
from fedpart.data import DATASETS
from fedpart.methods.base import Method, build_method
from fedpart.models import MODELS
from fedpart.task.likelihood import LIKELIHOODS
from simulations.config.errors import check_name, check_options, knows, sentence
from simulations.config.file import ConfigError
from simulations.config.sections import HyperparameterSection, Section

Proportion = Annotated[float, Field(gt=0, le=1)]
# What the data and the model are made from; a kind of configuration need not have all of them.
_BUILT = (
    *("data", "data_options", "data_seed", "clients", "training_points"),
    *("rotated", "max_angle", "rotated_padding", "split"),
    *("model", "model_options", "hyperparameters"),
)


class Clock(NamedTuple):
    """What a run counts.

    ``name`` is the key in metrics.jsonl, and the word for people; ``total`` the key of the configuration that
    says how many; ``command`` the one that runs it; ``way`` is federated or centralised, as methods have it;
    ``kind`` says what it is in a sentence.
    """

    name: str
    total: str
    command: str
    way: str
    kind: str


class Config(Section):
    """What decides a run, checked. Subclasses are the kinds of experiments.

    Attributes:
        clock: what a run of this kind counts.
        rim: keys that say where and how carefully a run is computed, not what: other values give the same
            numbers.
    """

    clock: ClassVar[Clock]
    rim: ClassVar[tuple[str, ...]] = ("data_dir", "checkpoint_every")
    kinds: ClassVar[list[type[Config]]] = []

    method: str = Field(default="partitioned", description="a registered name, or package.module:Class")
    method_options: dict[str, dict[str, Any]] = Field(
        default={},
        description="options by method, e.g. {augerino: {safe: false}}; only those of `method` are used",
    )
    seed: int = Field(
        default=0,
        ge=0,
        description="decides everything but the data: weights, partition, chunks, cohorts, noise",
    )
    data_seed: int = Field(
        default=0, ge=0, description="decides the data: rotation angles, subset, split among clients"
    )

    chunks: tuple[Proportion, ...] = Field(description="proportions u of the chunks, sum 1")
    parameters: tuple[Proportion, ...] | None = Field(
        default=None, description="proportions of the parameters, one per chunk; null: as chunks"
    )
    scheme: Literal["random", "node"] = Field(
        default="random", description="how parameters are partitioned: single weights, units"
    )
    chain: tuple[str, ...] | None = Field(
        default=None,
        description="for scheme node: Linear and Conv layers in order; null: an nn.Sequential's own",
    )
    defaults: Literal["initial", "zeros"] = Field(
        default="initial", description="values of what a subnetwork does not contain"
    )
    samples: int = Field(default=10, ge=1, description="S, augmentation samples per example")
    average: Literal["logits", "log_probabilities", "probabilities"] = Field(
        default="logits", description="what is averaged over the S samples"
    )
    share_dropout_mask: bool = Field(
        default=False, description="whether the S samples of an example share a dropout mask"
    )

    data: str = Field(
        default="digits",
        description="digits (embedded), mnist, cifar10, image_folder, torchvision, ... (docs/data.md), or "
        "package.module:callable -> fedpart.data.Splits",
    )
    data_options: dict[str, Any] = Field(
        default={}, description="keyword arguments of the data set's loader, e.g. {size: 32}"
    )
    data_dir: str | None = Field(
        default=None, description="folder or zip of the data files, relative to the current folder"
    )
    rotated: bool = Field(default=False, description="turn every image once by an angle of its own")
    max_angle: float = Field(
        default=180.0, gt=0, le=180, description="degrees; rotated images are turned by +-max_angle"
    )
    rotated_padding: Literal["zeros", "border", "reflection"] = Field(
        default="zeros", description="what lies outside of a rotated image"
    )
    training_points: int | None = Field(
        default=None, ge=1, description="random subset for training; null: all"
    )
    validation_points: int | None = Field(
        default=None, ge=1, description="random subset for validation; null: all"
    )
    test_points: int | None = Field(default=None, ge=1, description="random subset for the test; null: all")

    model: str = Field(
        default="digits_cnn",
        description="digits_cnn, mnist_cnn, resnet9, or package.module:callable (num_classes, input_shape)",
    )
    model_options: dict[str, Any] = Field(
        default={}, description="further keyword arguments of the model's builder"
    )
    likelihood: str = Field(
        default="classification",
        description="classification, gaussian, or package.module:callable -> nll per example",
    )
    hyperparameters: HyperparameterSection = Field(
        default=HyperparameterSection(), description="what psi consists of"
    )
    psi_from: str | None = Field(
        default=None,
        description="folder of a finished run whose psi is the initial psi; relative to the current folder",
    )

    device: str = Field(default="cpu", description="where models are computed: cpu, cuda, cuda:0, ...")
    precision: Literal["fp32", "fp64", "bf16", "auto"] = Field(
        default="fp32",
        description="floating-point type of the network; auto: fp32 or bf16 and a memory format, as this "
        "machine is fastest, measured once and written into the run's config.yaml",
    )
    channels_last: bool = Field(
        default=False,
        description="memory format of images inside the network; with precision bf16 about three times as "
        "fast on CPUs that have it",
    )
    threads: int = Field(
        default=1,
        ge=1,
        description="torch threads per process; runs are bit-identical at equal threads. With precision bf16 "
        "the kernels for pooled convolutions (AMX) run only with one: several workers of a thread each are "
        "the fast way",
    )
    evaluate_every: int = Field(default=10, ge=1, description="steps of the clock between evaluations")
    checkpoint_every: int = Field(default=10, ge=1, description="steps of the clock between checkpoints")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        Config.kinds.append(cls)

    @field_validator("method")
    @classmethod
    def _method(cls, value: str) -> str:
        check_name(value, METHODS)
        if cls._can_run(value):
            return value
        here = ", ".join(name for name in METHODS.names() if cls._can_run(name))
        other = next(kind.clock for kind in Config.kinds if kind is not cls)
        raise ValueError(
            f"the method {value!r} is for {other.kind}: use it with fedpart {other.command}, or one of "
            f"{here} with fedpart {cls.clock.command}"
        )

    @classmethod
    def _can_run(cls, method: str) -> bool:
        return bool(getattr(METHODS.resolve(method), cls.clock.way, True))

    @field_validator("model")
    @classmethod
    def _model(cls, value: str) -> str:
        return check_name(value, MODELS)

    @field_validator("data")
    @classmethod
    def _data(cls, value: str) -> str:
        return check_name(value, DATASETS)

    @field_validator("data_options")
    @classmethod
    def _data_options(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("data")  # absent if it is refused itself
        if name is not None:
            if "data_seed" in value:
                raise ValueError("data_seed is a key of the configuration; set it there")
            check_options(DATASETS.resolve(name), value, f"the data set {name!r}")
        return value

    @field_validator("likelihood")
    @classmethod
    def _likelihood(cls, value: str) -> str:
        return check_name(value, LIKELIHOODS, "likelihood")

    @field_validator("method_options")
    @classmethod
    def _method_options(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for method, options in value.items():
            check_name(method, METHODS)
            check_options(METHODS.resolve(method), options, f"the method {method!r}")
        return value

    @property
    def length(self) -> int:
        """How many steps of the clock are configured."""
        return int(getattr(self, self.clock.total))

    @property
    def may_grow(self) -> bool:
        """Whether a run can go on for longer than it was meant to, with nothing else changed."""
        return True

    @property
    def folder_is_data(self) -> bool:
        """Whether another ``data_dir`` means other data, not another place of the same."""
        return self.data == "image_folder" or ":" in self.data

    def recorded(self, until: int) -> range:
        """Counts of the clock that have a line in metrics.jsonl for certain, up to ``until``."""
        return range(self.evaluate_every, until + 1, self.evaluate_every)

    def build_method(self) -> Method:
        """The method with its own options."""
        return build_method(self.method, self.method_options.get(self.method, {}))

    def shared_settings(self) -> dict[str, Any]:
        """What the library's settings of every kind take from here, by name."""
        return {
            "method": self.method,
            "method_options": self.method_options.get(self.method, {}),
            "chunks": self.chunks,
            "parameters": self.parameters,
            "seed": self.seed,
            "scheme": self.scheme,
            "defaults": self.defaults,
            "chain": self.chain,
            "device": self.device,
        }

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, as plain data for YAML and JSON; :meth:`from_dict` is the inverse."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: str = "the configuration") -> Self:
        """Check plain data.

        Args:
            data: keys and values; what is not given keeps its default.
            source: where they come from, for the message.

        Raises:
            ConfigError: one sentence that names the key and what would fit, or the command that the
                configuration is for.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(f"{source}: {cls._other_command(data) or sentence(error, cls)}") from None

    @classmethod
    def _other_command(cls, data: dict[str, Any]) -> str | None:
        for key in data:
            for kind in Config.kinds:
                if key in kind.model_fields and not knows(cls, str(key)):
                    mine, other = cls.clock, kind.clock
                    return (
                        f"{key!r} is a key of {other.kind}, and fedpart {mine.command} does {mine.kind}; use "
                        f"fedpart {other.command}, or leave it out."
                    )
        return None

    def hash(self) -> str:
        """Short hash of everything that decides the result: 16 hex digits."""
        return _hash({key: value for key, value in self.resolved().items() if key not in self.rim})

    def identity(self) -> str:
        """Short hash of what is built from the configuration before training: data, split and model."""
        return _hash({key: value for key, value in self.resolved().items() if key in _BUILT})


def kind_of(data: dict[str, Any]) -> type[Config]:
    """The kind of experiment that resolved plain data describe: the one whose clock they set."""
    return next((kind for kind in Config.kinds if kind.clock.total in data), Config.kinds[0])


def _hash(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
