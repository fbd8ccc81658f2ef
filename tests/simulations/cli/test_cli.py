"""The command line: what a user types, reads, and gets as exit status."""

import io
import os
import signal
from pathlib import Path

import pytest
import torch
from command_line import fedpart, refused, shown
from rich.console import Console
from tiny import tiny, tiny_file
from torch import nn

from fedpart import HyperModule, RoundReport, __version__
from fedpart.nn.hyperparameters import TRANSFORMS
from simulations.building.experiment import build
from simulations.config.load import ConfigError
from simulations.folders.run_directory import read_metrics, read_summary, saved_config
from simulations.results.terminal.panel import panel
from simulations.results.terminal.progress import Progress

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

DIVERGES = {"learning_rate": 1e30, "epochs": 3}


def test_run_shows_progress_and_a_summary_and_leaves_a_folder(tmp_path):
    result = fedpart("run", tiny_file(tmp_path), "--set", "rounds=2", "seed=3")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Trained on: inputs of 1x28x28; 60 examples of 6 clients (")
    assert lines.pop(0).endswith("held out: 30 for validation, 40 for test")
    assert "6 clients, 3 per round, local engine" in lines[0]
    assert lines[1].startswith("round 1/2: ") and "val." not in lines[1]  # no terminal: plain lines
    assert lines[2].startswith("round 2/2: val. accuracy ")
    assert "rotation -" in lines[2] and "dropout " in lines[2]
    for part in ("rotation ", " deg", "on test data", "of what FedAvg's clients send", "method=fedavg"):
        assert part in result.stdout
    folder = tmp_path / "runs" / "tiny-partitioned-seed3"
    assert saved_config(folder).rounds == 2
    assert len(read_metrics(folder)) == 2

    short = ("run", tiny_file(tmp_path), "--set", "rounds=1", "--set", "seed=3")
    assert fedpart(*short, "--set", "method=fedavg").exit_code == 0
    ratio = read_summary(tmp_path / "runs" / "tiny-fedavg-seed3")["upload_ratio"]
    assert ratio == pytest.approx(1, abs=5e-3)

    assert fedpart(*short).exit_code == 0  # nothing is overwritten
    assert saved_config(folder).rounds == 2
    assert saved_config(folder.with_name("tiny-partitioned-seed3-2")).rounds == 1

    refused(fedpart("run", tiny_file(tmp_path), "--out", folder), "already holds a run", "--resume", "--out")
    done = fedpart("run", "--resume", folder)
    assert done.exit_code == 0 and "already finished" in done.stdout and "on test data" in done.stdout
    refused(fedpart("run", "--resume", folder, "--set", "seed=4"), "seed = 3, not 4")
    longer = fedpart("run", "--resume", folder, "--set", "rounds=3")
    assert longer.exit_code == 0 and "resumed after round 2" in longer.stdout
    assert len(read_metrics(folder)) == 3


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["method=fedavgg"], ["did you mean 'fedavg'?"]),
        (["rounds=many"], ["rounds cannot be 'many'"]),
        (["data=mnist"], ["MNIST needs a folder", "--set data_dir="]),
        (["training_points=5000"], ["training_points is 5000", "1297"]),
        (["clients=100"], ["100 clients cannot share 60 examples"]),
        (["cohort=2", "clients=2"], ["2 clients for 3 chunks"]),
        (["parameters=[0.999999, 0.0000005, 0.0000005]"], ["empty"]),
        (["device=cuda:99"], ["'cuda:99' cannot be used", "device: cpu"]),
        (["model_options.widht=3"], ["model_options: the model 'digits_cnn' has no option 'widht'"]),
        (["data=table", "data_options={targt: y}"], ["has no option 'targt': did you mean 'target'?\n"]),
        (["data=table", "data_options={data_dir: y}"], ["data_dir and data_seed are keys: set them there"]),
        (["data=test_cli:of_a_colour"], ["data_options.colour is missing", "data_options: {colour: ...}"]),
        (["data=test_cli:of_nothing"], ["(too many positional arguments)", "is called with data_dir"]),
        (["data=test_cli:broken"], ["has no len(), line", "test_cli.py); check data_options"]),
        (["model=ensemble"], ["model_options.members is missing", "model_options: {members: [...]}"]),
        (["hyperparameters.names=[stage1.*]"], ["'stage1.*'"]),
        (["hyperparameters.affine.initial=[0.1, 0.2]"], ["one number or 6"]),
        (["hyperparameters.transforms=['test_cli:not_a_transform']"], ["returns int, and no transform"]),
        (
            ["hyperparameters.transforms=[{use: 'test_cli:Brightness', options: {initail: 1}}]"],
            ["did you mean 'initial'?"],
        ),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, settings, wanted):
    overrides = [argument for setting in settings for argument in ("--set", setting)]
    refused(fedpart("run", tiny_file(tmp_path), *overrides), *wanted)
    assert not (tmp_path / "runs").exists()


def test_an_option_that_a_data_set_needs_is_told_with_what_it_means(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n")
    table = (tiny_file(tmp_path), "--set", "data=table", f"data_dir={tmp_path / 't.csv'}")
    missing = ("data_options.target is missing, ", "(the column to predict)", "data_options: {target: NAME}.")
    for command in ("run", "compare"):
        refused(fedpart(command, *table), *missing)
    refused(fedpart("run", *table, "data_options={target: null}"), "data_options.target cannot be None")


def test_the_version_and_what_is_missing_is_said(tmp_path):
    assert fedpart("--version").stdout.strip() == f"fedpart {__version__}"
    refused(fedpart("run"), "Name a configuration")
    refused(fedpart("compare"), "Name a configuration")
    refused(fedpart("run", "nowhere.yaml"), "no configuration file nowhere.yaml")
    refused(fedpart("run", "quickstart", "search_quickstart"), "One configuration at a time")
    refused(fedpart("run", "--resume", tmp_path), "holds no run")
    refused(fedpart("run", "--resume", tmp_path, "--out", tmp_path / "other"), "leave --out")


@pytest.mark.parametrize("skip", [False, True])
def test_a_run_whose_clients_fail_is_no_result(tmp_path, skip):
    """One that fails ends it and names itself; with all of them skipped nothing is learnt."""
    more = {"on_client_error": "skip", "rounds": 1} if skip else {}
    result = fedpart("run", tiny_file(tmp_path, local=DIVERGES, **more), "--out", "bad")
    refused(result, *["Nothing is learnt", "client_error"] * skip, "lient", "round 1", "loss", status=1)
    assert read_summary("bad") is None
    assert not skip or len(read_metrics("bad")[0]["skipped"]) == 3


def test_skipped_clients_are_recorded(tmp_path):
    slow = {"devices": {"speed": {"lognormal": [20, 2]}}, "deadline": 3}
    path = tiny_file(tmp_path, on_client_error="skip", **slow)
    result = fedpart("run", path, "--out", "some")
    assert result.exit_code == 0, result.output
    lines = read_metrics("some")
    entries = [entry for line in lines for entry in line["skipped"]]
    assert 0 < len(entries) < sum(len(line["cohort"]) for line in lines)
    assert all(set(entry) == {"client", "category", "reason"} for entry in entries)
    assert "skipped" in result.stdout


class Brightness(HyperModule):
    """A transform of somebody's own."""

    hyperparameters = ("log_gain",)

    def __init__(self, initial=0.1):
        super().__init__()
        self.log_gain = nn.Parameter(torch.tensor(initial))

    def forward(self, x):
        return x * self.log_gain.exp()


def of_a_colour(data_dir, *, colour):
    raise AssertionError("nobody has named the colour")


def of_nothing():
    raise AssertionError("a loader is handed a folder")


def broken(data_dir):
    return len(5)


def not_a_transform() -> int:
    return 3


def linear(num_classes, input_shape):
    """A model of somebody's own."""
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], num_classes))


@pytest.mark.slow
def test_a_model_and_a_transform_of_ones_own(tmp_path):
    transforms = [{"use": "test_cli:Brightness", "options": {"initial": 0.25}}]
    learned = {"affine": None, "transforms": transforms}
    path = tiny_file(tmp_path, model="test_cli:linear", hyperparameters=learned, rounds=1)
    result = fedpart("run", path, "--out", "own")
    assert result.exit_code == 0 and "brightness.log_gain" in result.stdout, result.output
    assert list(read_metrics("own")[0]["psi"]["raw"]) == ["brightness.log_gain"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_last_round_and_says_how_to_go_on(tmp_path, monkeypatch, number):
    def send(self, report):
        if report.round == 2:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "report", send)
        result = fedpart("run", tiny_file(tmp_path, checkpoint_every=100), "--out", "stopped")
    after = len(read_metrics("stopped"))
    assert result.exit_code == 128 + number and "fedpart run --resume stopped" in result.stderr
    assert 2 <= after < 5
    assert f"resumed after round {after}" in fedpart("run", "--resume", "stopped").stdout
    assert len(read_metrics("stopped")) == 5


def test_without_a_terminal_every_round_has_a_line_until_the_tenth(tmp_path):
    console, rounds = Console(file=io.StringIO(), width=200), range(1, 31)
    progress = Progress(console)
    with progress.run(tiny(rounds=30, evaluate_every=12), tmp_path, 0, 30):
        for n in rounds:
            progress.report(RoundReport(n, 0.1, 1.0, None, [0], 1, 1, {}, {}))
    lines = console.file.getvalue().splitlines()[1:]
    assert [int(line.split()[1].partition("/")[0]) for line in lines] == [*range(1, 11), 12, 24, 30]


def test_up_takes_a_file_that_extends_another(tmp_path, monkeypatch):
    seen = []

    def deployed(config, folder, **_):
        seen.append(config)
        raise ConfigError("enough")

    monkeypatch.setattr("simulations.cli.federations.run_deployed", deployed)
    base = tiny_file(tmp_path, rounds=7)
    (tmp_path / "mine.yaml").write_text(f"extends: {base.name}\nseed: 5\n")
    refused(fedpart("up", tmp_path / "mine.yaml", "--out", tmp_path / "up"), "enough")
    ((rounds, seed, skip),) = [(one.rounds, one.seed, one.on_client_error) for one in seen]
    assert (rounds, seed, skip) == (7, 5, "skip")


def test_units_of_psi_and_names_of_folders_are_not_read_as_markup():
    summary = {
        "method": "my[b]:M", "engine": "local", "rounds": 2, "seconds": 61.0, "test_accuracy": None,
        "val_accuracy": None, "upload_ratio": 0.8, "upload_ratio_expected": 0.77, "upload_bytes": 999_900,
        "skipped_clients": 0, "psi": {"wave.reach [deg]": 3.0, "wave.period [s]": 2.0},
        "psi_learned": ["wave.reach [deg]", "wave.period [s]"],
    }  # fmt: skip
    text = shown(panel(summary, Path("out[red]")))
    for part in ("wave.reach [deg] 3", "wave.period [s] 2", "out[red]/: config", "my[b]:M, 2", "1000 kB in"):
        assert part in text


def test_transforms_of_the_library_have_short_names_and_all_are_called_as_in_the_library():
    """Each is found in psi under the name of its class."""
    built = build(tiny(hyperparameters={"affine": None, "transforms": TRANSFORMS.names()}))
    assert {type(transform) for transform in built.task.transforms.values()} == set(TRANSFORMS.values())
    options = {"use": "colour", "options": {"saturation": None, "hue": None, "brightness": 0.3}}
    twice = ["test_cli:Brightness", "test_cli:Brightness"]
    built = build(tiny(hyperparameters={"affine": {}, "transforms": [*twice, options]}))
    psi = built.task.physical(built.task.psi_space.initial())
    assert psi["colour_jitter.brightness [+-%]"] == pytest.approx(30)
    names = [name.partition(".")[0] for name in built.task.psi_names]
    assert list(dict.fromkeys(names))[:3] == ["affine", "brightness", "brightness2"]
