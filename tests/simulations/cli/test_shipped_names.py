"""Shipped configurations by name, in any folder; and finished runs, shown again."""

import subprocess
import sys

import pytest
from command_line import fedpart, refused
from places import EXPERIMENTS
from tiny import tiny_file

from simulations.config.yaml_files import file_of, purpose, shipped
from simulations.folders.run_directory import saved_config


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def test_every_shipped_file_has_a_name_and_says_in_a_sentence_what_it_is_for():
    files = shipped()
    assert {*files.values()} >= {path for path in EXPERIMENTS if path.parent.name != "shared"}
    assert {"quickstart", "table4/mnist_1250", "tables/sizes"} <= files.keys()
    listed = " ".join(fedpart("configs").stdout.split())
    for name, file in files.items():
        assert f"{name} {purpose(file)}"[:60] in listed and 20 < len(purpose(file)) < 400
    assert purpose(files["mnist_1k"]).count("(App. J.2 of the paper)") == 1


def test_a_name_stands_for_its_file_and_a_file_that_is_there_comes_first(tmp_path):
    assert file_of("quickstart") == str(shipped()["quickstart"])
    (tmp_path / "quickstart").write_text("rounds: 3\n")
    assert file_of("quickstart") == "quickstart" and file_of("nothing") == "nothing"


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


def test_a_file_that_is_not_there_is_missed_before_torch_is_loaded():
    code = (
        "import sys; from simulations.cli.main import app\n"
        "try: app(['run', 'nowhere.yaml'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n" and "no configuration file nowhere.yaml" in done.stderr
