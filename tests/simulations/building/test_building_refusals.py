"""What cannot be built of a configuration: data, tasks, networks, and runs that are not finished."""

from functools import partial
from pathlib import Path

import numpy as np
import refusals
import torch
from tiny import tiny, tiny_file, tiny_training, wards, wards_file
from torch import nn

import fedpart
from fedpart.training import result as saved
from simulations.building.data import load_data, split_among_clients
from simulations.building.experiment import build
from simulations.building.task import build_task
from simulations.config.load import ConfigError, ExperimentConfig, load_config
from simulations.running.run import run_experiment

PLAIN = {"hyperparameters": {"affine": None, "dropout": None}, "method": "fedavg", "chunks": [1.0]}
TASKS = [
    (
        {"hyperparameters": [{"use": "flip"}, {"use": "noise", "options": {"std": "0.1"}}]},
        r"^hyperparameters\.transforms\[1\]\.options\.std cannot be '0\.1'; for the transform 'noise' it "
        r"should be a valid number\.$",
    ),
    (
        {"hyperparameters": [{"use": "blur", "options": {"kernel_size": 9.0}}]},
        r"options\.kernel_size cannot be 9\.0; .* a valid integer",
    ),
    (
        {"hyperparameters": [{"use": "test_building_refusals:brittle", "options": {"by": 2}}]},
        r"^The transform 'test_building_refusals:brittle' cannot be made: .*NoneType.*; check hyperp.*\[0\]",
    ),
    (
        {"model": "frozen_resnet"},
        r"^model_options\.weights is missing, and the model 'frozen_resnet' needs it \(.+\); set it, for ",
    ),
    ({"model": "mlp", "model_options": {"hidden": 8}}, r"model_options\.hidden cannot be 8; .*mlp"),
    (
        {"likelihood": "gaussian", "likelihood_options": {"learned": "yes"}},
        r"likelihood_options\.learned cannot be 'yes'; for the likelihood 'gaussian' .*boolean",
    ),
]


def brittle(by):
    """Breaks in a way of its own."""
    return None + by


def task(shape, hyperparameters=(), **changes):
    transforms = {"affine": None, "transforms": list(hyperparameters)}
    build_task(ExperimentConfig.from_dict({"hyperparameters": transforms, **changes}), 3, shape)


def test_tasks(tmp_path):
    rows = [(f"{changes}", partial(task, (1, 8, 8), **changes), says) for changes, says in TASKS]
    for model in ("mlp", "digits_cnn", "resnet9"):
        call = partial(task, {"left": (3,), "right": (3,)}, model=model)
        rows.append((model, call, rf"^The model '{model}' takes inputs of one shape, not .*'left'"))
    options = {"affine": None, "transforms": [{"use": "noise", "part": "image"}]}
    whole = build(load_config(tiny_file(tmp_path, model="mlp", hyperparameters=options)))
    parted = partial(whole.task.transformed, whole.task.psi_space.initial(), whole.test.inputs[:2])
    one_tensor = r"cannot act on a part 'image' of them; .* its key `part`\.$"
    rows.append(("a part of one tensor", parted, one_tensor))
    misspelt = [{"use": "colour", "options": {"brightnes": 0.3}}]
    no_option = r"'colour' has no option 'brightnes': did you mean 'brightness'"
    rows.append(("an option", lambda: build(tiny(hyperparameters=misspelt)), no_option))
    refusals.check((*row, ValueError, says) for *row, says in rows)


def test_data(tmp_path):
    path = wards_file(tmp_path)

    def table(clients=5, **options):
        build(wards(path, clients, data_options=options))

    two = {"normalise": {"mean": [0.5, 0.5], "std": [1.0, 1.0]}}
    numbers = partial(table, target="days", ignore=["ill"], standardise=True)
    means = "2 means and 2 deviations, but the images have 1 channels"
    six = "examples of 5 clients, but clients is 6; set clients: 5"
    natural = partial(tiny, split={"recipe": "natural"})
    no_deviation = partial(ExperimentConfig.from_dict, {"normalise": {"mean": [0.5]}})
    data = {"table": {"target": "ill"}, "leaf": {}, "image_folder": {}, "hf:parquet": {}}
    types = [
        (
            f"{name}: {options}",
            partial(load_data, tiny(data=name, data_options={**data[name], **options})),
            says,
        )
        for name, options, says in [
            ("table", {"ignore": "xy"}, "should be a list"),
            ("hf:parquet", {"ignore": "xy"}, "should be a list"),
            ("leaf", {"shape": "28"}, "should be a list"),
            ("table", {"standardise": "no"}, "should be a valid boolean"),
            ("image_folder", {"clients": "no"}, "should be a valid boolean"),
        ]
    ]
    refusals.check(
        (what, call, ValueError, rf"^data_options\..* cannot be '.*'; for the data set '.*' it {says}\.$")
        for what, call, says in types
    )
    refusals.check(
        [
            ("a mean without deviation", no_deviation, ConfigError, "normalise"),
            ("a mean too many", lambda: load_data(tiny(**two)), ValueError, means),
            ("a client too many", partial(table, 6), ValueError, six),
            ("clients unknown", lambda: build(natural()), ValueError, "does not know its clients"),
            ("numbers as targets", numbers, ValueError, "set likelihood: gaussian"),
        ]
    )


def two(num_classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 2))


def pictures(num_classes, input_shape):
    return nn.Conv2d(1, 3, 3, padding=1)


def other(num_classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 10))


def test_networks_before_there_is_a_folder(tmp_path):
    made = (two, pictures, other)
    nets = {net: {"model": f"{__name__}:{net.__name__}", "model_options": {}} for net in made}
    central = {**PLAIN, "keep_best": False, "method": "none"}
    inputs = r"The network does not take inputs \[2, 1, 28, 28\] \(.*\); change model or model_options\."
    given = r"for inputs \[2, 1, 28, 28\], which do not fit"
    rows = [
        (tiny(**PLAIN, **nets[two]), rf"gives outputs \[2, 2\] {given} 10 classes .* model"),
        (tiny(**PLAIN, **nets[pictures]), rf"gives outputs \[2, 3, 28, 28\] {given}"),
        (tiny(**PLAIN, **nets[other]), inputs),
        (tiny_training(**central, **nets[other]), "The network does not take inputs"),
    ]
    refusals.check(
        (f"{i}: {config.model}", partial(run_experiment, config, tmp_path / "run"), ConfigError, says)
        for i, (config, says) in enumerate(rows)
    )
    assert not (tmp_path / "run").exists()


def test_runs_that_cannot_be_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_experiment(tiny(rounds=1), "run")
    run_experiment(tiny(rounds=1), "begun")
    for run in ("run", "begun"):
        Path(run, "state.safetensors").unlink()
    Path("begun/summary.json").unlink()
    no_state = r"run holds no finished run \(there is no state.safetensors\)"
    begun = "not finished; continue it with fedpart run --resume begun"
    refusals.check(
        (folder, partial(fedpart.load, folder), ConfigError, says)
        for folder, says in (("nowhere", "nowhere holds no run"), ("run", no_state), ("begun", begun))
    )
    monkeypatch.setattr(saved, "GROUP", "fedpart.nothing")
    refusals.check([("no package", lambda: fedpart.load("run"), RuntimeError, "install fedpart anew")])


def shuffled(groups, clients, alpha, seed):
    np.random.default_rng(seed).shuffle(np.asarray(groups))
    return np.array_split(np.arange(len(groups)), clients)


def test_a_split_of_ones_own_that_writes_into_its_labels_leaves_the_data_as_they_are():
    config = tiny(split={"recipe": "test_building_refusals:shuffled"})
    train = load_data(config).train
    before = train.targets.clone()
    shards = split_among_clients(config, train)
    assert torch.equal(train.targets, before)
    assert torch.equal(torch.cat([shard.targets for shard in shards]), before)
