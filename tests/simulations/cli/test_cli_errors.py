"""Errors, outputs and names on the command line: one sentence, whatever is wrong; shipped configurations."""

import errno
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import fedpart, refused
from places import EXPERIMENTS, ROOT
from tiny import tiny_file, unnamed
from torch import nn
from typer.testing import CliRunner

from fedpart import Dataset
from fedpart.data import load_splits
from simulations.cli.main import app
from simulations.config.yaml_files import file_of, purpose, shipped
from simulations.folders.run_directory import read_metrics, saved_config

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def test_a_folder_that_cannot_be_written_or_named_is_one_sentence(tmp_path):
    config, nowhere = tiny_file(tmp_path, rounds=1), "/proc/nope/x"
    refused(fedpart("run", config, "--out", nowhere), f"cannot be kept in {nowhere}", "--out")
    compared = fedpart("compare", config, "--methods", "fedavg", "--seeds", "1", "--out", nowhere)
    refused(compared, f"cannot be kept in {nowhere}", "No such file or directory")
    refused(fedpart("run", config, "--out", config / "x"), "Not a directory")
    for words in (("run", config, "--out"), ("compare", config, "--out"), ("run", "--resume"), ("show",)):
        refused(fedpart(*words, "a\0b"), r"There is a NUL character in 'a\x00b'; leave it out.")


def test_a_device_without_memory_is_one_sentence_and_another_error_keeps_its_traceback(monkeypatch):
    def fails(error):
        def run(*_, **__):
            raise error

        monkeypatch.setattr("simulations.cli.commands.run_experiment", run)
        return fedpart("run", ROOT / "simulations" / "configs" / "quickstart.yaml", "--out", "folder")

    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has ...")
    refused(fails(full), "too little memory (CUDA out of memory)", "device: cpu", "--resume", status=1)
    small = RuntimeError("MPS backend out of memory (MPS allocated: 8.1 GB). Tried to allocate 4.0 GB on ...")
    refused(fails(small), "too little memory (MPS backend out of memory (MPS allocated: 8.1 GB))", status=1)
    large = MemoryError("Unable to allocate 3.64 TiB for an array with shape (1000, 1000)")
    refused(fails(large), "too little memory (Unable to allocate 3.64 TiB for an array", status=1)
    elsewhere = FileNotFoundError(errno.ENOENT, "No such file or directory", "/elsewhere/file")
    assert fails(elsewhere).exception is elsewhere


@pytest.mark.slow
def test_held_out_labels_that_do_not_fit_are_one_sentence(tmp_path):
    for part in ("validation", "test"):
        own = {"data": f"test_cli_errors:bad_{part}", "model": "test_cli_errors:ten"}
        path = tiny_file(tmp_path, **own, rounds=2, evaluate_every=2, hyperparameters={"affine": {}})
        refused(fedpart("run", path, "--out", part), "labels of the evaluation set", status=1)
        assert fedpart("run", path, "--resume", part).exit_code == 1  # no round is lost or counted twice


@pytest.mark.slow
def test_what_an_execution_refuses_leaves_no_folder_in_the_way(tmp_path):
    changes = {"execution": "fused", "local": {"epochs": 2}}
    refused(fedpart("run", tiny_file(tmp_path, rounds=1, **changes), "--out", "here"), "set it to 1, or use")
    assert not Path("here").exists()
    path = tiny_file(tmp_path, rounds=1, **{**changes, "execution": "loop"})
    assert fedpart("run", path, "--out", "here").exit_code == 0


@pytest.mark.slow
def test_nodes_that_are_not_the_clients_are_one_sentence(tmp_path, monkeypatch):
    from fedpart.flower.nodes import NodesError
    from simulations.ray.engine import RayEngine

    def refuse(*_):
        raise NodesError("A node was started for 2 clients.")

    monkeypatch.setattr(RayEngine, "__enter__", lambda self: setattr(self, "grid", None) or self)
    monkeypatch.setattr(RayEngine, "__exit__", lambda *_: None)
    without_ray = nullcontext(lambda experiment, federation: RayEngine(experiment, federation, None))
    monkeypatch.setattr("simulations.ray.engine.starting", lambda *_: without_ray)
    monkeypatch.setattr("fedpart.flower.strategy.FedPart.run", refuse)
    refused(fedpart("run", tiny_file(tmp_path), "--engine", "ray", "--out", "x"), "for 2 clients", status=1)


@pytest.mark.slow
def test_a_run_of_flwr_is_continued_with_an_engine_of_its_own(tmp_path):
    config = tiny_file(tmp_path, rounds=2)
    refused(fedpart("run", config, "--set", "engine=flower"), "run here with --engine local (or --engine")
    assert fedpart("run", config, "--out", "flwr").exit_code == 0
    text = (unnamed(Path("flwr")) / "config.yaml").read_text()
    Path("flwr/config.yaml").write_text(text.replace("engine: local", "engine: flower"))
    longer = ("run", "--resume", "flwr", "--set", "rounds=3")
    refused(fedpart(*longer), "continue it with --resume flwr --engine local (or --engine ray)")
    assert fedpart(*longer, "--engine", "local").exit_code == 0
    assert len(read_metrics("flwr")) == 3


def ten(num_classes, input_shape):
    """A model that takes no notice of the number of classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], 10))


def bad(part):
    splits = load_splits("digits")
    data = getattr(splits, part)
    return replace(splits, num_classes=19, **{part: Dataset(data.inputs, data.targets + 9)})


def bad_validation(data_dir):
    return bad("validation")


def bad_test(data_dir):
    return bad("test")


def ended(*arguments, full):
    command = [sys.executable, "-c", "from simulations.cli.main import main; main()", *map(str, arguments)]
    with open("/dev/full", "w") as device:
        outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {full: device}
        return subprocess.run(command, text=True, check=False, timeout=600, **outputs)


ON_A_FULL_DEVICE = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is always full")


@pytest.mark.slow
@ON_A_FULL_DEVICE
def test_a_full_standard_output_is_one_sentence_and_a_full_standard_error_a_status():
    for argument in ("--help", "configs"):
        result = ended(argument, full="stdout")
        assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
        assert "The standard output cannot be written (No space left on device)" in result.stderr
    result = ended("run", "no-such-configuration", full="stderr")
    assert result.returncode == 1 and result.stdout == ""
    assert ended("configs", full="stderr").returncode == 0


@pytest.mark.slow
@ON_A_FULL_DEVICE
def test_a_full_standard_output_of_a_run_is_not_its_folder(tmp_path):
    config, out = tiny_file(tmp_path, rounds=1), tmp_path / "out"
    result = ended("run", config, "--out", out, full="stdout")
    assert result.returncode == 1 and "standard output cannot be written" in result.stderr
    assert "--out" not in result.stderr and "Traceback" not in result.stderr
    assert fedpart("run", "--resume", out).exit_code == 0 and len(read_metrics(out)) == 1


def test_every_shipped_file_has_a_name_and_says_in_a_sentence_what_it_is_for():
    files = shipped()
    assert {*files.values()} >= {path for path in EXPERIMENTS if path.parent.name != "shared"}
    assert {"quickstart", "table4/mnist_1250", "tables/sizes"} <= files.keys()
    listed = " ".join(fedpart("configs").stdout.split())
    for name, file in files.items():
        assert f"{name} {purpose(file)}"[:60] in listed and 20 < len(purpose(file)) < 400
    assert purpose(files["mnist_1k"]).count("(App. J.2 of the paper)") == 1
    assert file_of("quickstart") == str(files["quickstart"]) and file_of("nothing") == "nothing"
    Path("quickstart").write_text("rounds: 3\n")
    assert file_of("quickstart") == "quickstart"  # a file that is there comes first


@pytest.mark.slow
def test_a_run_by_name_and_shown_again(tmp_path):
    few = ["rounds=1", "clients=4", "cohort=2", "training_points=40", "samples=1", "engine=local"]
    ran = fedpart("run", "quickstart", "--set", *few, "--out", "found")
    assert ran.exit_code == 0, ran.output
    assert saved_config(tmp_path / "found").clients == 4
    shown = fedpart("show", "found")
    panel = ran.stdout[ran.stdout.index("╭") : ran.stdout.index("Try next")]
    assert panel in shown.stdout
    refused(fedpart("show", str(tmp_path)), "holds no finished run")
    refused(fedpart("run", "quickstarts"), "There is no configuration file quickstarts", "fedpart configs")
    refused(fedpart("show", tiny_file(tmp_path)), "holds no finished run")


def test_a_setting_in_two_words_is_told_so_and_a_federated_file_by_the_name_of_the_command():
    for words, wanted in (
        (["rounds", "3"], "--set rounds: write key=value without a space, for instance --set rounds=20."),
        (["rounds: 3"], "for instance --set rounds=3."),
        (["rounds:", "3"], "for instance --set rounds=20."),
        (["=3"], "--set =3: write key=value, for instance"),
    ):
        refused(fedpart("run", "quickstart", "--set", *words), wanted)
    for command in ("select", "train"):
        wanted = f"fedpart {command} does centralised training; use fedpart run"
        refused(fedpart(command, "quickstart"), wanted)


def completed(words):
    environment = {"_FEDPART_COMPLETE": "complete_bash", "COMP_WORDS": f"fedpart {words}"}
    environment["COMP_CWORD"] = str(len(words.split(" ")))
    return CliRunner().invoke(app, [], env=environment, prog_name="fedpart").stdout.split()


def test_the_shell_completes_shipped_configurations_and_keys_of_the_kind_that_a_command_takes():
    assert completed("run quick") == ["quickstart"]
    assert "rounds=" in completed("run quickstart --set ")
    assert completed("run --set rounds") == ["rounds="]
    assert completed("compare quickstart --set local.ep") == ["local.epochs="]
    assert completed("up --set hyperparameters.dropout.r") == ["hyperparameters.dropout.rate="]
    assert completed("train --set iter") == ["iterations="] != completed("run --set iter")
    assert completed("run --set nothing") == []


LIGHT = """
import os, sys
from simulations.cli.main import app, main
for words in (["--help"], ["run", "nowhere.yaml"], []):
    if not words:
        os.environ |= {"_FEDPART_COMPLETE": "complete_bash", "COMP_WORDS": "fedpart run --set rounds"}
        os.environ["COMP_CWORD"] = "3"
    sys.argv = ["fedpart", *words]
    try:
        main() if words else app(prog_name="fedpart")
    except SystemExit as end:
        print(words, end.code, "torch" in sys.modules, flush=True)
"""


def test_help_a_file_that_is_not_there_and_completion_load_no_torch():
    command = [sys.executable, "-c", LIGHT]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert "compare" in done.stdout and "no configuration file nowhere.yaml" in done.stderr
    *_, missed, completion, end = done.stdout.splitlines()
    assert (missed, completion) == ("['run', 'nowhere.yaml'] 2 False", "rounds=")
    assert "['--help'] 0 False" in done.stdout and end.endswith("False")
