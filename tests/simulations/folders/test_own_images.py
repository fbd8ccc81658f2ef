"""guides/data.md: a user's own images, from the folder to the results, with the file that it shows."""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from command_line import fedpart
from image_files import write_class_folders, zipped
from places import ROOT
from safetensors.torch import load_file

from simulations.folders.run_directory import read_summary

TEXT = (ROOT / "docs" / "guides" / "data.md").read_text()
YAML = re.findall(r"```yaml\n# pictures\.yaml\n(.*?)```", TEXT, re.DOTALL)
SMALL = ["rounds=2", "samples=2", "clients=4", "cohort=2", "model_options={width: 0.25}"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Three classes of images in odd sizes, and the configuration."""
    (text,) = YAML
    write_class_folders(tmp_path / "pictures", 15)
    (tmp_path / "pictures.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_folder_to_results(project):
    done = fedpart("run", "pictures.yaml", "--out", "first", "--set", *SMALL)
    assert done.exit_code == 0, done.output
    summary = read_summary(project / "first")
    assert summary["rounds"] == 2 and 0 <= summary["test_accuracy"] <= 1
    assert list((project / "first").glob("*.png"))
    zipped(project / "pictures", project / "pictures.zip")
    done = fedpart("run", "pictures.yaml", "--out", "second", "--set", *SMALL, "data_dir=pictures.zip")
    assert done.exit_code == 0, done.output
    first, second = (load_file(project / name / "state.safetensors") for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def command(*arguments):
    done = fedpart(*arguments)
    return done.exit_code, " ".join(done.output.split())


def compared(*methods):
    settings = [text for setting in SMALL for text in ("--set", setting)]
    arguments = ["--methods", ",".join(methods), "--seeds", "1", "--out", "both", *settings]
    return command("compare", "pictures.yaml", *arguments)


def drop(number):
    for path in sorted((Path("pictures") / "red").glob("*.*g"))[:number]:
        path.unlink()


def test_a_comparison_and_its_report(project):
    for code, output in (compared("fedavg", "partitioned"), command("report", "both")):
        assert code == 0, output
    page = (project / "both" / "report.html").read_text()
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", charts[-1])
    assert {"blue", "green", "red", "label"} <= {*texts}
    assert "The rows, from above: blue, green, red." in page and "4 clients, 32 examples" in page
    assert "as learned" in page and '<img src="data:image/png;base64,' in page


def test_changed_images_are_other_data(project):
    code, output = compared("fedavg")
    assert code == 0, output
    (project / "pictures" / "red" / "notes.txt").write_text("no image")
    code, output = compared("fedavg")
    assert code == 0 and "1 of 1 runs were finished before" in output
    drop(10)
    wanted = "red: 15 images there, 5 here"
    code, output = compared("fedavg", "partitioned")
    assert code == 2 and f"other settings ({wanted}); choose another folder" in output
    assert not (project / "both" / "partitioned").exists()
    code, output = command("report", "both")
    assert code == 0, output
    page = (project / "both" / "report.html").read_text()
    assert page.count(f"The data are not those that the runs are made of ({wanted}).") == 1
    shutil.rmtree(project / "pictures")  # finished runs are compared without them
    code, output = compared("fedavg")
    assert code == 0 and "1 of 1 runs were finished before" in output


def test_a_run_goes_on_with_the_images_that_it_started_with(project):
    code, output = command("run", "pictures.yaml", "--out", "first", "--set", *SMALL)
    assert code == 0, output
    longer = ["run", "--resume", "first", "--set", "rounds=3"]
    zipped(project / "pictures", project / "whole.zip")
    os.rename(project / "pictures" / "blue" / "00.png", project / "pictures" / "blue" / "99.png")
    drop(10)
    code, output = command(*longer)
    assert code == 2 and "not those that the run in first started with (blue: images of other names" in output
    assert "red: 15 images there, 5 here); bring them back" in output
    listed = (project / "first" / "data.json").read_text()
    (project / "first" / "data.json").write_text(listed[:40])
    code, output = command(*longer)
    assert code == 2 and "first/data.json cannot be read" in output
    (project / "first" / "images.json").write_text(listed)  # as earlier versions have called it
    (project / "first" / "data.json").unlink()
    code, output = command(*longer)
    assert code == 2 and "(blue: images of other names" in output
    code, output = command(*longer, "data_dir=whole.zip")
    assert code == 0 and read_summary(project / "first")["rounds"] == 3
