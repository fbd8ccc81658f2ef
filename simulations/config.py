"""ExperimentConfig: everything that decides a run, checked; read from YAML and ``key=value`` settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from fedpart import METHODS, AdamSettings, FederationSettings, LocalSettings
from fedpart.data import DATASETS, SPLITS
from fedpart.likelihood import LIKELIHOODS
from fedpart.models import MODELS
from simulations.config_errors import check_name, check_options, sentence
from simulations.config_file import ConfigError, apply_override, read_yaml
from simulations.sections import (
    AdamSection,
    HyperparameterSection,
    LocalSection,
    PsiAdamSection,
    Section,
    SplitSection,
)

__all__ = ["ConfigError", "ExperimentConfig", "load_config"]

# Where and how carefully a run is computed, not what: other values give the same numbers.
RIM = ("engine", "workers", "data_dir", "checkpoint_every")
_DATA = ("data", "data_seed", "clients", "training_points", "rotated", "max_angle", "split")
_MODEL = ("model", "model_options", "hyperparameters")

Proportion = Annotated[float, Field(gt=0, le=1)]


class ExperimentConfig(Section):
    """A federated experiment; defaults are the paper's MNIST settings where it states them (App. J.2)."""

    method: str = Field(
        default="partitioned", description="partitioned, fedavg, augerino, or package.module:Class"
    )
    method_options: dict[str, dict[str, Any]] = Field(
        default={},
        description="options by method, e.g. {augerino: {safe: false}}; only those of `method` are used",
    )
    rounds: int = Field(default=100, ge=1, description="rounds of federated training")
    seed: int = Field(
        default=0,
        ge=0,
        description="decides everything but the data: weights, partition, chunks, cohorts, noise",
    )
    data_seed: int = Field(
        default=0, ge=0, description="decides the data: rotation angles, subset, split among clients"
    )

    clients: int = Field(default=100, ge=1, description="N, number of clients")
    cohort: int = Field(default=10, ge=1, description="clients per round")
    chunks: tuple[Proportion, ...] = Field(
        default=(0.7, 0.2, 0.1), description="proportions u of the clients' chunks, sum 1"
    )
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
    weighting: Literal["examples", "uniform"] = Field(
        default="examples", description="weights of clients in averages"
    )
    non_contributors: Literal["ignore", "zero"] = Field(
        default="ignore",
        description="whether clients that did not train a partition count as no change in its average",
    )
    samples: int = Field(default=10, ge=1, description="S, augmentation samples per example")
    average: Literal["logits", "log_probabilities", "probabilities"] = Field(
        default="logits", description="what is averaged over the S samples"
    )
    share_dropout_mask: bool = Field(
        default=False, description="whether the S samples of an example share a dropout mask"
    )
    local: LocalSection = Field(default=LocalSection(), description="clients' training")
    server: AdamSection = Field(default=AdamSection(), description="the server's Adam on the weights")
    server_psi: PsiAdamSection = Field(default=PsiAdamSection(), description="the server's Adam on psi")

    data: str = Field(
        default="digits",
        description="digits (embedded), mnist, or package.module:callable -> fedpart.data.Splits",
    )
    data_dir: str | None = Field(
        default=None, description="folder of the data files, relative to the current folder"
    )
    rotated: bool = Field(default=False, description="turn every image once by an angle of its own")
    max_angle: float = Field(
        default=180.0, gt=0, le=180, description="degrees; rotated images are turned by +-max_angle"
    )
    training_points: int | None = Field(
        default=None, ge=1, description="random subset for training; null: all"
    )
    validation_points: int | None = Field(
        default=None, ge=1, description="random subset for validation; null: all"
    )
    test_points: int | None = Field(default=None, ge=1, description="random subset for the test; null: all")
    split: SplitSection = Field(default=SplitSection(), description="how clients share the training points")

    model: str = Field(
        default="digits_cnn",
        description="digits_cnn, mnist_cnn, or package.module:callable (num_classes, input_shape)",
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

    engine: Literal["local", "ray", "flower"] = Field(
        default="local",
        description="local: this process; ray: Flower's apps on Ray actors; flower: what `flwr run` records",
    )
    workers: int | None = Field(default=None, ge=1, description="Ray actors; null: one per CPU core")
    device: str = Field(default="cpu", description="where models are computed: cpu, cuda, cuda:0, ...")
    precision: Literal["fp32", "fp64", "bf16"] = Field(default="fp32", description="floating-point type")
    threads: int = Field(
        default=1, ge=1, description="torch threads per process; runs are bit-identical at equal threads"
    )
    on_client_error: Literal["fail", "skip"] = Field(
        default="fail", description="whether a client's error ends the run"
    )
    evaluate_every: int = Field(
        default=10, ge=1, description="rounds between evaluations; the last round is always evaluated"
    )
    checkpoint_every: int = Field(default=10, ge=1, description="rounds between checkpoints")

    @field_validator("method")
    @classmethod
    def _method(cls, value: str) -> str:
        return check_name(value, METHODS)

    @field_validator("model")
    @classmethod
    def _model(cls, value: str) -> str:
        return check_name(value, MODELS)

    @field_validator("data")
    @classmethod
    def _data(cls, value: str) -> str:
        return check_name(value, DATASETS)

    @field_validator("likelihood")
    @classmethod
    def _likelihood(cls, value: str) -> str:
        return check_name(value, LIKELIHOODS, "likelihood")

    @field_validator("split")
    @classmethod
    def _split(cls, value: SplitSection) -> SplitSection:
        check_name(value.recipe, SPLITS)
        return value

    @field_validator("method_options")
    @classmethod
    def _method_options(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for method, options in value.items():
            check_name(method, METHODS)
            check_options(METHODS.resolve(method), options, f"the method {method!r}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ExperimentConfig:
        self.settings()
        if self.split.by == "angle" and not self.rotated:
            raise ValueError(
                "split.by is angle, but the data are not rotated; set rotated: true or split.by: label"
            )
        return self

    def settings(self) -> FederationSettings:
        """The part that server and clients share, in the library's terms."""

        def adam(section: AdamSection) -> AdamSettings:
            return AdamSettings(section.learning_rate, section.eps, section.betas)

        return FederationSettings(
            clients=self.clients,
            method=self.method,
            method_options=self.method_options.get(self.method, {}),
            chunks=self.chunks,
            parameters=self.parameters,
            cohort=self.cohort,
            seed=self.seed,
            local=LocalSettings(**self.local.model_dump()),
            server=adam(self.server),
            server_psi=adam(self.server_psi),
            weighting=self.weighting,
            non_contributors=self.non_contributors,
            scheme=self.scheme,
            defaults=self.defaults,
            chain=self.chain,
            device=self.device,
            on_client_error=self.on_client_error,
        )

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, as plain data for YAML and JSON; :meth:`from_dict` is the inverse."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: str = "the configuration") -> ExperimentConfig:
        """Check plain data.

        Args:
            data: keys and values; what is not given keeps its default.
            source: where they come from, for the message.

        Raises:
            ConfigError: one sentence that names the key and what would fit.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(f"{source}: {sentence(error, cls)}") from None

    def hash(self) -> str:
        """Short hash of everything that decides the result: 16 hex digits."""
        return _hash({key: value for key, value in self.resolved().items() if key not in RIM})

    def identity(self) -> str:
        """Short hash of what server and clients build on their own: data, split and model."""
        return _hash({key: value for key, value in self.resolved().items() if key in (*_DATA, *_MODEL)})


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read a YAML file and apply settings like ``"server.learning_rate=0.01"`` (values are YAML).

    A relative ``data_dir`` is taken from the current folder and made absolute.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or a key or value does not fit; one sentence.
    """
    data = read_yaml(Path(path))
    for override in overrides:
        apply_override(data, override)
    keys = " ".join(f"--set {override}" for override in overrides)
    if isinstance(data.get("data_dir"), str):
        data["data_dir"] = str(Path(data["data_dir"]).expanduser().absolute())
    return ExperimentConfig.from_dict(data, f"{path}{' with ' + keys if keys else ''}")


def _hash(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
