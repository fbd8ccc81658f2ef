"""The command line: what a user types, reads, and gets as exit status."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import fedpart, refused
from places import ROOT
from rich.console import Console
from tiny import tiny, tiny_file

from fedpart import HyperModule, RoundReport, __version__
from fedpart.nn.hyperparameters import TRANSFORMS
from simulations.building.experiment import build
from simulations.config.load import ConfigError
from simulations.folders.run_directory import read_metrics, read_summary, saved_config
from simulations.results.psi_parts import compact
from simulations.results.terminal.panel import panel
from simulations.results.terminal.progress import Progress

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

DIVERGES = {"learning_rate": 1e30, "epochs": 3}


def test_run_shows_progress_and_a_summary_and_leaves_a_folder(tmp_path):
    result = fedpart("run", tiny_file(tmp_path), "--set", "rounds=2", "seed=3")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "6 clients, 3 per round, local engine" in lines[0]
    assert lines[1].startswith("round 1/2: ") and "val." not in lines[1]  # no terminal: plain lines
    assert lines[2].startswith("round 2/2: val. accuracy ")
    assert "rotation -" in lines[2]
    assert "dropout " in lines[2]
    for part in (
        "rotation ",
        " deg",
        "on test data",
        "of what FedAvg's clients send",
        "method=fedavg",
    ):
        assert part in result.stdout
    folder = tmp_path / "runs" / "tiny-partitioned-seed3"
    assert saved_config(folder).rounds == 2
    assert len(read_metrics(folder)) == 2

    again = fedpart(
        "run", tiny_file(tmp_path), "--set", "rounds=1", "--set", "seed=3", "--set", "method=fedavg"
    )
    assert again.exit_code == 0
    assert (read_summary(tmp_path / "runs" / "tiny-fedavg-seed3") or {})["upload_ratio"] == pytest.approx(
        1, abs=5e-3
    )

    third = fedpart(
        "run", tiny_file(tmp_path), "--set", "rounds=1", "--set", "seed=3"
    )  # nothing is overwritten
    assert third.exit_code == 0
    assert saved_config(folder).rounds == 2
    assert saved_config(folder.with_name("tiny-partitioned-seed3-2")).rounds == 1

    refused(fedpart("run", tiny_file(tmp_path), "--out", folder), "already holds a run", "--resume", "--out")
    done = fedpart("run", "--resume", folder)
    assert done.exit_code == 0
    assert "already finished" in done.stdout
    assert "on test data" in done.stdout
    refused(fedpart("run", "--resume", folder, "--set", "seed=4"), "seed = 3, not 4")
    longer = fedpart("run", "--resume", folder, "--set", "rounds=3")
    assert longer.exit_code == 0
    assert "resumed after round 2" in longer.stdout
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
        (["model_options.widht=3"], ["no option 'widht'"]),
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


def test_what_is_missing_is_said(tmp_path):
    refused(fedpart("run"), "Name a configuration")
    refused(fedpart("compare"), "Name a configuration")
    refused(fedpart("run", "nowhere.yaml"), "no configuration file nowhere.yaml")
    refused(fedpart("run", "quickstart", "search_quickstart"), "One configuration at a time")
    refused(fedpart("run", "--resume", tmp_path), "holds no run")
    refused(fedpart("run", "--resume", tmp_path, "--out", tmp_path / "other"), "leave --out")


def test_a_failed_client_ends_the_run_and_names_itself(tmp_path):
    result = fedpart("run", tiny_file(tmp_path, local=DIVERGES), "--out", "bad")
    refused(result, "client", "round 1", "loss", status=1)
    assert read_summary("bad") is None


def test_skipped_clients_are_recorded(tmp_path):
    path = tiny_file(tmp_path, on_client_error="skip", max_examples=10)
    result = fedpart("run", path, "--out", "some")
    assert result.exit_code == 0, result.output
    lines = read_metrics("some")
    entries = [entry for line in lines for entry in line["skipped"]]
    assert 0 < len(entries) < sum(len(line["cohort"]) for line in lines)
    assert all(set(entry) == {"client", "category", "reason"} for entry in entries)
    assert "skipped" in result.stdout


def test_a_run_in_which_every_client_fails_is_no_result(tmp_path):
    path = tiny_file(tmp_path, local=DIVERGES, on_client_error="skip", rounds=1)
    result = fedpart("run", path, "--out", "bad")
    refused(result, "Nothing is learnt", "client_error", "round 1", "loss", status=1)
    assert len(read_metrics("bad")[0]["skipped"]) == 3 and read_summary("bad") is None


class Brightness(HyperModule):
    """A transform of somebody's own."""

    hyperparameters = ("log_gain",)

    def __init__(self, initial=0.1):
        import torch

        super().__init__()
        self.log_gain = torch.nn.Parameter(torch.tensor(initial))

    def forward(self, x):
        return x * self.log_gain.exp()


def not_a_transform() -> int:
    return 3


def linear(num_classes, input_shape):
    """A model of somebody's own."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], num_classes))


def test_a_model_and_a_transform_of_ones_own(tmp_path):
    transforms = [{"use": "test_cli:Brightness", "name": "light", "options": {"initial": 0.25}}]
    path = tiny_file(
        tmp_path,
        model="test_cli:linear",
        hyperparameters={"affine": None, "transforms": transforms},
        rounds=1,
    )
    result = fedpart("run", path, "--out", "own")
    assert result.exit_code == 0, result.output
    assert list(read_metrics("own")[0]["psi"]["raw"]) == ["light.log_gain"]
    assert "light.log_gain" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_last_round_and_says_how_to_go_on(tmp_path, monkeypatch, number):
    def send(self, report):
        if report.round == 2:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "report", send)
        result = fedpart("run", tiny_file(tmp_path, checkpoint_every=100), "--out", "stopped")
    assert result.exit_code == 128 + number
    assert "fedpart run --resume stopped" in result.stderr
    stopped_after = len(read_metrics("stopped"))
    assert 2 <= stopped_after < 5
    resumed = fedpart("run", "--resume", "stopped")
    assert f"resumed after round {stopped_after}" in resumed.stdout
    assert len(read_metrics("stopped")) == 5


def test_without_a_terminal_every_round_has_a_line_until_the_tenth(tmp_path):
    console, rounds = Console(file=io.StringIO(), width=200), range(1, 31)
    progress = Progress(console)
    with progress.run(tiny(rounds=30, evaluate_every=12), tmp_path, 0, 30):
        for n in rounds:
            progress.report(RoundReport(n, 0.1, 1.0, None, [0], 1, 1, {}, {}))
    lines = console.file.getvalue().splitlines()[1:]
    assert [int(line.split()[1].partition("/")[0]) for line in lines] == [*range(1, 11), 12, 24, 30]


def test_help_does_not_import_torch():
    code = "import sys; from simulations.cli.main import main\n"
    code += "try: main()\nfinally: assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, "--help"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr
    assert "compare" in answer.stdout


def test_version():
    assert fedpart("--version").stdout.strip() == f"fedpart {__version__}"


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


def test_psi_in_few_words():
    ranges = {"affine.angle_min [deg]": -12.4, "affine.angle_max [deg]": 14.1, "affine.scale_x_min": 1.0}
    ranges["affine.scale_x_max"] = 1.1
    physical = {**ranges, "dropout1.rate [%]": 9.0, "dropout2.rate [%]": 10.6, "light.gain": 0.2}
    assert compact(physical) == "rotation -12.4..+14.1 deg, dropout 9.8%, light.gain 0.2"
    narrow = {"affine.angle_min [deg]": 0.31, "affine.angle_max [deg]": -0.26}  # crossed
    assert compact(narrow) == "rotation -0.26..+0.31 deg"
    theta = {"arms.probability[2.5%] [%]": 29.7, "arms.probability[5%] [%]": 70.3}
    assert compact({"dropout1.rate [%]": 5.0, **theta, "light.gain": 0.2}) == "dropout 5.0%, light.gain 0.2"
    assert compact(theta).startswith("arms.probability[2.5%]")  # where no rate says it
    assert compact({}) == ""


def test_units_of_psi_and_names_of_folders_are_not_read_as_markup():
    summary = {
        "method": "my[b]:M", "engine": "local", "rounds": 2, "seconds": 61.0, "test_accuracy": None,
        "val_accuracy": None, "upload_ratio": 0.8, "upload_ratio_expected": 0.77, "upload_bytes": 999_900,
        "skipped_clients": 0, "psi": {"wave.reach [deg]": 3.0, "wave.period [s]": 2.0},
        "psi_learned": ["wave.reach [deg]", "wave.period [s]"],
    }  # fmt: skip
    console = Console(width=200, file=io.StringIO())
    console.print(panel(summary, Path("out[red]")))
    shown = console.file.getvalue()
    for part in (
        "wave.reach [deg] 3",
        "wave.period [s] 2",
        "out[red]/: config",
        "my[b]:M, 2",
        "1000 kB in all",
    ):
        assert part in shown


def test_transforms_are_called_as_in_the_library():
    twice = ["test_cli:Brightness", {"use": "test_cli:Brightness", "name": "light"}, "test_cli:Brightness"]
    hyperparameters = {"affine": {}, "transforms": twice}
    built = build(tiny(hyperparameters=hyperparameters))
    names = [name.partition(".")[0] for name in built.task.psi_names]
    assert list(dict.fromkeys(names))[:4] == ["affine", "brightness", "light", "brightness2"]


def test_transforms_of_the_library_have_short_names():
    """All of them; each is found in psi under the name of its class."""
    built = build(tiny(hyperparameters={"affine": None, "transforms": TRANSFORMS.names()}))
    assert {type(transform) for transform in built.task.transforms.values()} == set(TRANSFORMS.values())
    options = {"use": "colour", "options": {"saturation": None, "hue": None, "brightness": 0.3}}
    built = build(tiny(hyperparameters={"affine": None, "transforms": [options]}))
    psi = built.task.physical(built.task.psi_space.initial())
    assert psi["colour_jitter.brightness [+-%]"] == pytest.approx(30)
