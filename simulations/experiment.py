"""From a configuration to everything a run needs: task, protocol, shards, held-out data."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedpart import AffineAugmentation, Dataset, FederationSettings, HyperModule, Protocol, Task
from fedpart.data import SPLITS, Splits, angle_bins, load_splits, random_subset, rotated_splits
from fedpart.likelihood import LIKELIHOODS, Likelihood
from fedpart.models import MODELS
from fedpart.psi import named_transforms
from fedpart.registry import Registry
from fedpart.rng import generator
from simulations.config import ExperimentConfig
from simulations.config_errors import check_options
from simulations.sections import HyperparameterSection

_TRANSFORMS: Registry[Any] = Registry("transform")
_LIKELIHOODS: Registry[Likelihood] = Registry("likelihood")


class RunError(RuntimeError):
    """An experiment cannot go on, for a reason outside of its clients; one sentence."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """What a configuration describes, built: the same bits in every process.

    Attributes:
        config: where it comes from.
        task, settings, protocol: as server and clients share them.
        shards: client i holds ``shards[i]``.
        validation, test: held-out data.
        num_classes: K.
    """

    config: ExperimentConfig
    task: Task
    settings: FederationSettings
    protocol: Protocol
    shards: Sequence[Dataset]
    validation: Dataset
    test: Dataset
    num_classes: int


def build(config: ExperimentConfig) -> Experiment:
    """Load and split the data, build the model, and partition it. Leaves torch's random state as it was.

    Raises:
        ValueError, TypeError, FileNotFoundError, ImportError: the data, the model or the settings do not fit;
            the message is one sentence for the user.
    """
    _check_device(config.device)
    splits = load_data(config)
    shards = split_among_clients(config, splits.train)
    task = build_task(config, splits.num_classes, tuple(splits.train.inputs.shape[1:]))
    settings = config.settings()
    return Experiment(
        config=config,
        task=task,
        settings=settings,
        protocol=Protocol(task, settings, identity=config.identity()),
        shards=shards,
        validation=splits.validation,
        test=splits.test,
        num_classes=splits.num_classes,
    )


def load_data(config: ExperimentConfig) -> Splits:
    """The three data sets: rotated as a whole, then reduced to the configured numbers of points."""
    if config.data_dir is None and config.data == "mnist":
        raise FileNotFoundError(
            "MNIST needs a folder: add --set data_dir=FOLDER, one with MNIST/raw/ in it or, where a network "
            "exists, an empty one to download into."
        )
    splits = load_splits(config.data, config.data_dir)
    if config.rotated:
        splits = rotated_splits(splits, config.data_seed, math.radians(config.max_angle))
    points = {
        "training": (splits.train, config.training_points),
        "validation": (splits.validation, config.validation_points),
        "test": (splits.test, config.test_points),
    }
    for name, (dataset, wanted) in points.items():
        if wanted is not None and wanted > len(dataset):
            raise ValueError(
                f"{name}_points is {wanted}, but the {name} set of {config.data!r} has {len(dataset)} "
                f"examples; use at most that many, or null for all."
            )
    train, validation, test = (
        random_subset(dataset, wanted, config.data_seed) for dataset, wanted in points.values()
    )
    return Splits(train, validation, test, splits.num_classes)


def split_among_clients(config: ExperimentConfig, train: Dataset) -> list[Dataset]:
    """One shard per client, by label or by angle bin."""
    split = config.split
    if split.by == "angle" and train.groups is not None:
        groups = torch.from_numpy(angle_bins(train.groups, split.bins, math.radians(config.max_angle)))
    elif split.recipe == "iid" or not train.targets.is_floating_point():
        groups = (
            train.targets
            if not train.targets.is_floating_point()
            else torch.zeros(len(train), dtype=torch.int64)
        )
    else:
        raise ValueError(f"The targets of {config.data!r} are not labels; set split.recipe: iid.")
    shards = SPLITS.resolve(split.recipe)(groups, config.clients, split.alpha, config.data_seed)
    if len(shards) != config.clients:
        raise ValueError(
            f"The split {split.recipe!r} made {len(shards)} shards for {config.clients} clients."
        )
    return [train.subset(indices) for indices in shards]


def build_task(config: ExperimentConfig, num_classes: int, input_shape: tuple[int, ...]) -> Task:
    """The model with its hyperparameters; initial weights are a function of ``config.seed``."""
    seed = int(generator(config.seed, "model.initial").integers(2**63))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _build_model(config, num_classes, input_shape)
        transforms = _build_transforms(config.hyperparameters, input_shape)
    likelihood = config.likelihood
    return Task(
        module,
        transforms=transforms,
        hyperparameters=config.hyperparameters.names,
        likelihood=likelihood if likelihood in LIKELIHOODS else _LIKELIHOODS.resolve(likelihood),
        samples=config.samples,
        average=config.average,
        share_dropout_mask=config.share_dropout_mask,
        precision=config.precision,
    )


def _build_model(config: ExperimentConfig, num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    builder = MODELS.resolve(config.model)
    given = {"num_classes": num_classes, "input_shape": input_shape}
    dropout = config.hyperparameters.dropout
    wanted = (
        {"dropout": None}
        if dropout is None
        else {"dropout": dropout.rate, "temperature": dropout.temperature}
    )
    parameters = inspect.signature(builder).parameters
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    taken = {key: value for key, value in wanted.items() if any_keyword or key in parameters}
    defaults = HyperparameterSection.model_validate({}).dropout
    if len(taken) < len(wanted) and dropout is not None and dropout != defaults:
        raise ValueError(
            f"The model {config.model!r} takes no {' and '.join(sorted(wanted.keys() - taken.keys()))}, so "
            f"hyperparameters.dropout cannot be set; put ConcreteDropout layers into it, or leave it out."
        )
    clash = sorted(taken.keys() & config.model_options.keys())
    if clash:
        raise ValueError(f"model_options.{clash[0]} is set by hyperparameters.dropout; set it there.")
    check_options(builder, {**given, **config.model_options}, f"the model {config.model!r}")
    module = builder(**given, **taken, **config.model_options)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"The model {config.model!r} returned {type(module).__name__}; it must return an nn.Module."
        )
    return module


def _build_transforms(section: HyperparameterSection, input_shape: tuple[int, ...]) -> dict[str, HyperModule]:
    found: list[tuple[str | None, HyperModule]] = []
    if section.affine is not None:
        if len(input_shape) != 3:
            raise ValueError(
                f"Affine augmentation takes images [channels, height, width], but the inputs are "
                f"{list(input_shape)}; set hyperparameters.affine: null."
            )
        found.append((None, AffineAugmentation(**section.affine.model_dump())))
    for entry in section.transforms:
        build_one = _TRANSFORMS.resolve(entry.use)
        check_options(build_one, entry.options, f"the transform {entry.use!r}")
        transform = build_one(**entry.options)
        if not isinstance(transform, HyperModule):
            raise TypeError(
                f"The transform {entry.use!r} is a {type(transform).__name__}, not a fedpart.HyperModule."
            )
        found.append((entry.name, transform))
    names = iter(named_transforms([transform for given, transform in found if given is None]))
    transforms: dict[str, HyperModule] = {}
    for given, transform in found:
        name = next(names) if given is None else given
        if name in transforms:
            raise ValueError(f"Two transforms are called {name!r}; give one of them another name.")
        transforms[name] = transform
    return transforms


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except Exception as error:  # torch raises RuntimeError, AssertionError, NotImplementedError, ...
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ValueError(f"The device {device!r} cannot be used ({reason}); set device: cpu.") from None
