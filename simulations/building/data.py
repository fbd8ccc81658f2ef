"""From a configuration to its data: loaded, rotated, normalised, reduced, and split among clients."""

import inspect
import math
import traceback
from dataclasses import replace

import torch

from fedpart import data
from fedpart.data.preprocessing import Pictures
from fedpart.nn.likelihoods import LIKELIHOODS
from simulations.config.load import Config, ConfigError, ExperimentConfig
from simulations.config.messages import check_needed, check_types


def load_data(config: Config, *, download: bool = True) -> data.Splits:
    """The three data sets, rotated, normalised and reduced to numbers of points as configured."""
    if config.data_dir is None and config.data == "mnist":
        folder = "one with MNIST/raw/ in it or, where a network exists, an empty one to download into"
        raise FileNotFoundError(f"MNIST needs a folder: add --set data_dir=FOLDER, {folder}.")
    options, loader = dict(config.data_options), data.DATASETS.resolve(config.data)
    what = f"the data set {config.data!r}"
    check_types(loader, options, what, "data_options", names=True)
    first = [*inspect.signature(loader).parameters][:1]  # the folder, whatever they call it
    check_needed(loader, options, what, "data_options", [*first, "data_seed"])
    if not download and "download" in inspect.signature(loader).parameters:
        options["download"] = False
    likelihood = LIKELIHOODS.resolve(config.likelihood)
    if getattr(likelihood, "real_targets", False):
        options = {"real_targets": True, **options}
    try:
        splits = data.load_splits(config.data, config.data_dir, data_seed=config.data_seed, **options)
    except TypeError as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{error}, line {place.lineno} of {place.filename}"
        raise ConfigError(f"T{what[1:]} cannot be loaded ({said}); check data_options.") from error
    points = {
        "training": (splits.train, config.training_points),
        "validation": (splits.validation, config.validation_points),
        "test": (splits.test, config.test_points),
    }
    for name, (dataset, wanted) in points.items():
        if wanted is not None and wanted > len(dataset):
            fault = f"{name}_points is {wanted}, but the {name} set of {config.data!r} has {len(dataset)}"
            raise ValueError(f"{fault} examples; use at most that many, or null for all.")
    whole = "validation" if getattr(config, "full_validation_rounds", 0) else None
    train, validation, test = (
        _part(config, number, dataset, None if name == whole else wanted)
        for number, (name, (dataset, wanted)) in enumerate(points.items())
    )
    made = splits.preprocessing
    if made is not None and not getattr(likelihood, "scaled", False):
        made.state.pop("target", None)
    if config.normalise is not None and made is None:
        made = Pictures.of(None, "rgb" if len(config.normalise.mean) == 3 else "grey")
    if isinstance(made, Pictures):  # rotated stands for how images are found, and is no part of it
        made = made.completed(train.input_shape, config.normalise)
    return replace(splits, train=train, validation=validation, test=test, preprocessing=made)


def _part(config: Config, number: int, dataset: data.Dataset, points: int | None) -> data.Dataset:
    """The examples that are wanted, in memory and as networks get them; an image has the same angle whoever
    else is wanted."""
    places = None if points is None else data.random_places(len(dataset), points, config.data_seed)
    if config.rotated:
        angle = math.radians(config.max_angle)
        part = data.rotated(dataset, config.data_seed, angle, part=number, places=places)
    else:
        part = dataset if places is None else dataset.subset(places)
        part = data.Dataset(part.inputs, part.targets, part.groups, clients=part.clients)
    spread = config.normalise
    return part if spread is None else data.normalised(part, spread.mean, spread.std)


def client_names(config: ExperimentConfig, splits: data.Splits) -> tuple[str, ...]:
    """Of client 0, 1, ... where each keeps what the data set knows as its own; none if these are numbers."""
    if config.split.recipe != "natural" or not splits.client_names:
        return ()
    numbers = torch.unique(data.clients_of(splits.train)).tolist()
    names = tuple(splits.client_names[number] for number in numbers)
    return () if names == tuple(map(str, range(len(names)))) else names


def client_shards(config: ExperimentConfig, splits: data.Splits) -> list[data.Dataset]:
    """What each client holds: training points, and validation points where it evaluates on its own."""
    shards = split_among_clients(config, splits.train)
    if config.evaluation != "clients" or config.evaluation_share is not None:
        return shards
    try:
        if config.split.recipe == "natural":
            each = data.by_client(splits.validation, torch.unique(data.clients_of(splits.train)))
        else:
            each = split_among_clients(config, splits.validation)
    except ValueError as error:
        raise ValueError(f"With evaluation_share: null clients share the validation data. {error}") from error
    return [replace(shard, evaluation=part) for shard, part in zip(shards, each, strict=True)]


def split_among_clients(config: ExperimentConfig, train: data.Dataset) -> list[data.Dataset]:
    """One shard per client, by label or by angle bin, or as the data set says."""
    split = config.split
    if split.recipe == "natural":
        groups = data.clients_of(train)
    elif split.by == "angle" and train.groups is not None:
        groups = torch.from_numpy(data.angle_bins(train.groups, max_angle=math.radians(config.max_angle)))
    elif data.has_labels(train):
        groups = train.targets
    elif split.recipe == "iid":
        groups = torch.zeros(len(train), dtype=torch.int64)
    else:
        raise ValueError(f"The targets of {config.data!r} are not labels; set split.recipe: iid.")
    shards = data.SPLITS.resolve(split.recipe)(groups.clone(), config.clients, split.alpha, config.data_seed)
    # whose it is, a client's shard need not say
    plain = train if train.clients is None else replace(train, clients=None)
    held = data.check_shards(shards, len(train), config.clients, split.recipe)
    return [plain.subset(indices) for indices in held]
