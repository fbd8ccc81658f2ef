"""docs/data.md: a user's own images, from the folder to the results, with the file that it shows."""

import re
from pathlib import Path

import pytest
import torch
from image_files import write_class_folders, zipped
from safetensors.torch import load_file
from typer.testing import CliRunner

from simulations.cli import app
from simulations.config import load_config
from simulations.experiment import build
from simulations.run_directory import read_summary

TEXT = (Path(__file__).parents[1] / "docs" / "data.md").read_text()
YAML = re.findall(r"```yaml\n# pictures\.yaml\n(.*?)```", TEXT, re.DOTALL)
SMALL = ["rounds=2", "samples=2", "clients=4", "cohort=2", "model_options={width: 8, groups: 4}"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Three classes of images in odd sizes, and the configuration."""
    (text,) = YAML
    write_class_folders(tmp_path / "pictures", 15)
    (tmp_path / "pictures.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_folder_to_results(project):
    done = CliRunner().invoke(app, ["run", "pictures.yaml", "--out", "first", "--set", *SMALL])
    assert done.exit_code == 0, done.output
    summary = read_summary(project / "first")
    assert summary["rounds"] == 2 and 0 <= summary["test_accuracy"] <= 1
    assert list((project / "first").glob("*.png"))
    zipped(project / "pictures", project / "pictures.zip")
    done = CliRunner().invoke(
        app, ["run", "pictures.yaml", "--out", "second", "--set", *SMALL, "data_dir=pictures.zip"]
    )
    assert done.exit_code == 0, done.output
    first, second = (load_file(project / name / "state.safetensors") for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_from_a_folder_to_a_report(project):
    arguments = ["--methods", "fedavg,partitioned", "--seeds", "1", "--out", "compared", "--set", *SMALL]
    for command in (["compare", "pictures.yaml", *arguments], ["report", "compared"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    page = (project / "compared" / "report.html").read_text()
    assert "Examples by client and label" in page and "4 clients, 32 examples" in page
    assert "as learned" in page and '<img src="data:image/png;base64,' in page
    assert not re.search(r'data-label="local steps">—<', page)


def test_what_the_experiment_consists_of(project):
    experiment = build(load_config("pictures.yaml", SMALL))
    assert experiment.num_classes == 3
    assert [len(experiment.validation), len(experiment.test)] == [4, 9]
    assert sum(map(len, experiment.shards)) == 32
    assert {shard.inputs.shape[1:] for shard in experiment.shards} == {(3, 32, 32)}


def test_what_does_not_fit_is_one_sentence(project):
    for wrong, wanted in (
        ("data_options={}", "give one size for all"),
        ("data_options.size=none", "number of pixels"),
        ("data_dir=elsewhere", "elsewhere does not exist"),
        ("data_options.colours=grey", "did you mean 'colour'?"),
    ):
        done = CliRunner().invoke(app, ["run", "pictures.yaml", "--out", "third", "--set", *SMALL, wrong])
        assert done.exit_code == 2, done.output
        assert wanted in " ".join(done.output.split())
        assert not (project / "third").exists()
