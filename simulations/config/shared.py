"""Config: the keys that federated and centralised experiments share, and what every configuration can do."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import ValidationError, ValidationInfo, field_validator, model_validator

from fedpart import METHODS
from fedpart.data import DATASETS
from fedpart.methods.base import Method, build_method, method_class
from fedpart.nn.likelihoods import LIKELIHOODS
from fedpart.nn.models import MODELS
from fedpart.registry import admit
from fedpart.training.settings import Decides, RunSettings
from fedpart.updates.combining import COMBINATIONS
from fedpart.updates.combining.base import spelled
from simulations.config import sections
from simulations.config.gone import ELSEWHERE, restored
from simulations.config.keys import entry, section_of
from simulations.config.messages import check_options, named, places, sentence, truths_for_numbers, typed
from simulations.config.search import SearchSection
from simulations.errors import ConfigError

Kind = TypeVar("Kind", bound=RunSettings)
# What the data and the model are made from; a kind of configuration need not have all of them.
_BUILT = (
    *("data", "data_options", "data_seed", "clients", "training_points"),
    *("rotated", "max_angle", "normalise", "split"),
    *("model", "model_options", "likelihood", "likelihood_options", "hyperparameters"),
)


class Clock(NamedTuple):
    """What a run counts, rounds or iterations, and what follows from that."""

    name: str  # the key in metrics.jsonl, and the word for people
    total: str  # the key of the configuration that says how many
    command: str
    way: str  # federated or centralised, as methods have it
    kind: str  # a sentence


class Config(section_of(RunSettings, leave_out=("chain",))):
    """What decides a run, checked. Subclasses are the kinds of experiments, each with its own ``clock``."""

    clock: ClassVar[Clock]

    method_options: dict[str, dict[str, Any]] = entry(
        {},
        "options by method, and by way to combine clients, e.g. {augerino: {safe: false}, fedprox: {mu: 1}}; "
        "only those of `method` are used",
    )
    data_seed: int = entry(0, "decides the data: rotation angles, subset, split among clients", ge=0)

    samples: int = entry(10, "S, augmentation samples per example", ge=1)
    average: Literal["logits", "log_probabilities", "probabilities"] = entry(
        "logits", "what is averaged over the S samples"
    )
    stratified: bool = entry(
        False, "whether an example's S samples are spread evenly over the transforms' distributions"
    )

    data: named(DATASETS) = entry(
        "digits",
        "digits (embedded), mnist, cifar10, image_folder, table (CSV, Parquet), leaf, hf:NAME, torchvision, "
        "... (docs/guides/data.md), or package.module:callable -> fedpart.data.Splits",
    )
    data_options: dict[str, Any] = entry(
        {},
        "keyword arguments of the data set's loader, e.g. {size: 32}; any data set takes classes, e.g. "
        "{classes: [5, 6]}: these alone, numbered from 0",
    )
    data_dir: str | None = entry(
        None, "folder, zip or file of the data, relative to the current folder", decides="nothing"
    )
    code_dir: str | None = entry(
        None,
        "folder in which package.module:callable is looked for first, before the current one; null: the "
        "configuration's, if it has such a module",
        decides="nothing",
    )
    rotated: bool = entry(False, "turn every image once by an angle of its own")
    max_angle: float = entry(180.0, "degrees; rotated images are turned by +-max_angle", gt=0, le=180)
    normalise: sections.NormaliseSection | None = entry(
        None,
        "subtract a mean from each channel of images and divide by a deviation, after they are rotated and "
        "before any augmentation; null: pixels stay in [0, 1]",
    )
    training_points: int | None = entry(None, "random subset for training; null: all", ge=1)
    validation_points: int | None = entry(None, "random subset for validation; null: all", ge=1)
    test_points: int | None = entry(None, "random subset for the test; null: all", ge=1)

    model: named(MODELS) = entry(
        "digits_cnn",
        "digits_cnn, mnist_cnn, resnet9, wrn, fixup_resnet, resnet_v2, ensemble (of several networks), ..., "
        "or package.module:callable (num_classes, input_shape)",
    )
    model_options: dict[str, Any] = entry({}, "further keyword arguments of the model's builder")
    likelihood: named(LIKELIHOODS, "likelihood") = entry(
        "classification",
        "classification, ensemble (of a model with several members), token_classification, multilabel, "
        "gaussian, poisson, ordinal, from_model (the network returns its loss), or package.module:callable, "
        "a fedpart.nn.likelihoods.Likelihood or a function -> nll per example",
    )
    likelihood_options: dict[str, Any] = entry(
        {}, "keyword arguments of the likelihood, e.g. {learned: true}"
    )
    hyperparameters: sections.HyperparameterSection = entry(
        sections.HyperparameterSection(affine=sections.AffineSection(), dropout=sections.DropoutSection()),
        "what psi consists of: what is written here, and nothing else",
    )
    psi_from: str | None = entry(
        None, "folder of a finished run whose psi is the initial psi; relative to the current folder"
    )

    measures: bool = entry(
        False, "whether the test also gives F1, calibration error, RMSE, ... of the likelihood (torchmetrics)"
    )

    precision: Literal["fp32", "fp64", "bf16", "auto"] = entry(
        "fp32",
        "floating-point type of the network; auto: bf16 where this machine multiplies in it, else fp32, with "
        "channels last; the run's config.yaml says which",
    )
    channels_last: bool = entry(
        False,
        "memory format of images in the network; with bf16 about three times as fast on CPUs that have it",
    )
    threads: int = entry(
        1,
        "torch threads per process; runs are bit-identical at equal threads. The kernels for pooled "
        "convolutions run only with one: several workers of a thread each are the fast way",
        ge=1,
    )
    loggers: list[sections.LoggerSection] = entry(
        [],
        "what gets the numbers of the run while it is under way (docs/guides/loggers.md)",
        decides="nothing",
    )
    search: SearchSection | None = entry(None, "what fedpart search tries", decides="nothing")
    evaluate_every: int = entry(10, "rounds or iterations between evaluations", ge=1)
    checkpoint_every: int = entry(
        10, "rounds or iterations between checkpoints, at most", decides="nothing", ge=1
    )

    @model_validator(mode="before")
    @classmethod
    def _find_code(cls, data: Any) -> Any:
        """Names are imported while the keys are checked, here and in every process that is given the keys."""
        folder = data.get("code_dir") if isinstance(data, dict) else None
        admit(data, folder if isinstance(folder, str) else None)
        return data

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """In another process, the user's names are those of the process that has read them."""
        super().__setstate__(state)
        admit(self.resolved(), self.code_dir)

    @field_validator("method")
    @classmethod
    def _method(cls, value: str) -> str:
        if value not in METHODS and value in ELSEWHERE:
            raise ValueError(f"there is no method {value!r}; {ELSEWHERE[value]}")
        if cls._can_run(value):
            return value
        names = [*METHODS.names(), *COMBINATIONS.names()]
        here = ", ".join(name for name in names if cls._can_run(name))
        other = next(kind.clock for kind in Config.__subclasses__() if kind is not cls)
        fault = f"the method {value!r} is for {other.kind}: use it with fedpart {other.command}"
        raise ValueError(f"{fault}, or one of {here} with fedpart {cls.clock.command}")

    @classmethod
    def _can_run(cls, method: str) -> bool:
        can = getattr(method_class(method), cls.clock.way, True)
        return bool(can) and (cls.clock.way == "federated" or not spelled(method)[1])

    @field_validator("data_options")
    @classmethod
    def _data_options(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("data")  # absent if it is refused itself
        if name is not None:
            if {"data_dir", "data_seed"} & value.keys():
                raise ValueError("data_dir and data_seed are keys: set them there")
            plain = {key: option for key, option in value.items() if key != "classes"}  # any data set's
            check_options(DATASETS.resolve(name), plain, f"the data set {name!r}", ("data_dir", "data_seed"))
        return value

    @field_validator("likelihood_options")
    @classmethod
    def _likelihood_options(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("likelihood")  # absent if it is refused itself
        if name is not None and value:
            check_options(LIKELIHOODS.resolve(name), value, f"the likelihood {name!r}")
        return value

    @field_validator("method_options")
    @classmethod
    def _method_options(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for method, options in value.items():
            kind = COMBINATIONS if method in COMBINATIONS else METHODS
            check_options(kind.resolve(method), options, f"the method {method!r}")
        return value

    @property
    def length(self) -> int:
        return int(getattr(self, self.clock.total))

    @property
    def may_grow(self) -> bool:
        """Whether a run can go on for longer than it was meant to, with nothing else changed."""
        return True

    def build_method(self) -> Method:
        return build_method(self.method, self.options_of(self.method))

    def options_of(self, method: str) -> dict[str, Any]:
        """Those of a method, and of the ways to combine clients in its name."""
        base, ways = spelled(method)
        return dict(pair for name in (base, *ways) for pair in self.method_options.get(name, {}).items())

    def settings_as(self, kind: Callable[..., Kind], **changes: Any) -> Kind:
        """The run's settings: each is the key of that name; a null key is its setting's default or null."""
        default = {name: key.default for name, key in type(self).model_fields.items()}
        values = {name: getattr(self, name) for name in default}
        values |= {"method_options": self.options_of(self.method)} | changes
        known = {field.name for field in dataclasses.fields(kind)}
        left = {name for name, value in values.items() if value is None and default.get(name) is None}
        return kind(**{name: value for name, value in values.items() if name in known - left})

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, as plain data for YAML and JSON; :meth:`from_dict` is the inverse."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: str = "the configuration") -> Self:
        """Check plain data that ``source`` names in messages; what is not given keeps its default."""
        try:
            config = cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(f"{source}: {cls._other_command(data) or sentence(error, cls)}") from None
        for key, truth in truths_for_numbers(data, config.resolved()):
            fault = f"{source}: {key} is a number, got {truth}"
            raise ConfigError(f"{fault}, which YAML also reads in yes, on, no and off; write the number.")
        return config

    @classmethod
    def _other_command(cls, data: dict[str, Any]) -> str | None:
        for kind in Config.__subclasses__():
            names = [repr(name) for name in data if name in kind.model_fields and not places(str(name), cls)]
            if names:
                are, them = ("are keys", "them") if len(names) > 1 else ("is a key", "it")
                return (
                    f"{', '.join(names)} {are} of {kind.clock.kind}, and {typed()} does {cls.clock.kind}; "
                    f"use fedpart {kind.clock.command}, or leave {them} out."
                )
        return None

    @classmethod
    def file_schema(cls) -> dict[str, Any]:
        """The JSON Schema of a file of this kind."""
        made = cls.model_json_schema()
        for section in made["$defs"].values():
            section.pop("required", None)  # which a file that this one extends may have
        transforms = made["$defs"]["HyperparameterSection"]["properties"]["transforms"]
        transforms["items"] = {"anyOf": [transforms["items"], {"type": "string"}]}  # a name alone
        made["properties"]["extends"] = {"type": ["string", "array"], "description": "files that come first"}
        return made

    def deciding(self, *what: Decides) -> dict[str, Any]:
        """The keys that decide one of ``what`` (see :func:`.setting`), with their values as plain data."""
        keys = type(self).model_fields
        return {
            name: value
            for name, value in self.resolved().items()
            if keys[name].json_schema_extra["decides"] in what
        }

    def hash(self) -> str:
        """Short hash of everything that decides the result: 16 hex digits."""
        return _hash(self.deciding("numbers"))

    def identity(self) -> str:
        """Short hash of what is built from the configuration before training: data, split and model."""
        return _hash({key: value for key, value in restored(self.resolved()).items() if key in _BUILT})


def _hash(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
