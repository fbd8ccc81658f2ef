"""Building: a finished run read back, transforms of a file, images, clients whom the data know."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from command_line import fedpart as command
from command_line import refused, succeeds
from documents import DOCS, blocks
from sizes import TWO
from tiny import WARDS, tiny, tiny_training, unnamed, wards, wards_file
from torch import nn

import fedpart
from simulations.building.data import client_shards, load_data
from simulations.building.experiment import build
from simulations.building.task import build_task
from simulations.config.load import ExperimentConfig, load_config
from simulations.folders.data_files import changed_data, listed_data
from simulations.folders.run_directory import read_summary
from simulations.results.pictures.run_figures import examples, run_blocks
from simulations.running.run import run_experiment

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")
FINETUNED = {"method_options": {"validation": {"finetune_epochs": 1}}}  # beyond the iterations


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "config",
    [
        tiny(rounds=2),
        tiny(rounds=1, method="augerino"),  # its affine family is not the configuration's
        tiny(rounds=1, evaluation_samples=1),
        tiny(rounds=1, method="fedavg", model="digits_cnn", architectures=TWO, sharing={"kind": "basis"}),
        tiny_training(keep_best=True),
        tiny_training(iterations=10, method="separate"),
        tiny_training(iterations=10, method="validation", chunks=[0.8, 0.2], **FINETUNED),
    ],
)
def test_it_scores_as_the_run_has(config, monkeypatch):
    summary, test = run_experiment(config, "run"), build(config).test
    monkeypatch.setattr("simulations.building.reading.load_data", None)  # the data need not be there
    run = fedpart.load("run")
    samples = getattr(config, "evaluation_samples", None)
    found = run.state.evaluate(test, samples=samples)
    assert (found["nll"], found.get("accuracy")) == (summary["test_nll"], summary["test_accuracy"])
    assert run.psi == summary["psi"] and run.config == config.resolved()
    assert run.predict(test.inputs[:3]).shape == run.module()(test.inputs[:3]).shape
    assert run.predict(test.inputs[0].tolist()).shape == run.predict(test.inputs[:1].numpy()).shape


@pytest.mark.slow
def test_of_retraining_the_run_that_had_found_psi_may_be_gone():
    run_experiment(tiny(rounds=1), "found")
    succeeds("retrain", "found", "iterations=2", "--out", "again")
    found = fedpart.load("found").psi
    shutil.rmtree("found")
    assert fedpart.load("again").psi == found


def test_a_run_from_before_summaries_named_the_inputs_is_read_with_its_data():
    summary = run_experiment(tiny(rounds=1), "run")
    kept = {key: value for key, value in summary.items() if key not in ("inputs", "num_classes")}
    before = fedpart.load("run")
    (unnamed(Path("run")) / "summary.json").write_text(json.dumps(kept))
    assert "inputs" not in (read_summary("run") or {"inputs": ()})
    assert torch.equal(fedpart.load("run").state.w, before.state.w)


PAIR = {"left": (3,), "right": (3,)}


class Both(nn.Module):
    """Adds what it sees on both sides."""

    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.fc = nn.Linear(*input_shape["left"], num_classes)

    def forward(self, left, right):
        return self.fc(left) + self.fc(right)


def test_a_transform_acts_on_the_part_that_a_file_names(tmp_path):
    path = tmp_path / "parts.yaml"
    path.write_text(
        "model: test_reading:Both\nhyperparameters: {affine: null, transforms: [{use: noise, part: right}]}\n"
    )
    task = build_task(load_config(path), 3, PAIR)
    x = {"left": torch.zeros(4, 3), "right": torch.zeros(4, 3)}
    seen = task.transformed(task.psi_space.initial(), x)
    assert not seen["left"].any() and seen["right"].all()


NORMALISE = {"mean": [0.2], "std": [0.4]}


def test_images_are_normalised_after_they_are_rotated():
    """And so are clients' own examples."""
    own = {"rotated": True, "test_points": None, "evaluation": "clients", "evaluation_share": None}
    configs = [tiny(**own, **more) for more in ({}, {"normalise": NORMALISE})]
    plain, found = map(load_data, configs)
    for before, after in zip(plain.parts().values(), found.parts().values(), strict=True):
        torch.testing.assert_close(after.inputs, (before.inputs - 0.2) / 0.4)
        assert after.groups.equal(before.groups) and after.targets.equal(before.targets)
    for before, after in zip(*map(client_shards, configs, (plain, found)), strict=True):
        torch.testing.assert_close(after.evaluation.inputs, (before.evaluation.inputs - 0.2) / 0.4)


def test_pictures_of_transforms_have_the_images_own_colours(tmp_path):
    config = tiny(rounds=1, normalise=NORMALISE)
    run_experiment(config, tmp_path / "run")
    (_, shown), *others = run_blocks(tmp_path / "run", load_data(config))
    torch.testing.assert_close(shown[:, 0], examples(load_data(tiny()))[0])
    assert others


PAGE = blocks(DOCS / "guides" / "data.md")


@pytest.fixture
def file(tmp_path):
    return wards_file(tmp_path)


def test_a_data_set_that_knows_its_clients_leaves_them_their_examples(file):
    found = wards(file)
    assert found.split.recipe == "natural"
    assert ExperimentConfig.from_dict(found.resolved()) == found
    assert wards(file, split={"recipe": "iid"}).split.recipe == "iid"
    assert wards(file, data_options={"client": None, "ignore": ["ward", "days"]}).split.recipe == "per_label"
    for client, shard in enumerate(build(found).shards):
        assert len(shard) == 14 and shard.clients is None
        assert (shard.inputs[:, 0].long() % WARDS).eq(client).all()


def test_clients_score_on_their_own_held_out_rows(file):
    found = build(wards(file, evaluation="clients", evaluation_share=None))
    for client, shard in enumerate(found.shards):
        assert len(shard.evaluation) == 2
        assert (shard.evaluation.inputs[:, 0].long() % WARDS).eq(client).all()
        assert not set(shard.inputs[:, 0].tolist()) & set(shard.evaluation.inputs[:, 0].tolist())


def test_a_changed_table_is_noticed(file, tmp_path):
    """Also one of as many bytes; the same rows in a file of another name are the same."""
    (tmp_path / "wards.yaml").write_text(yaml.safe_dump(wards(file, rounds=1).resolved()))
    longer = ["run", "--resume", tmp_path / "run", "--set", "rounds=2"]
    succeeds("run", tmp_path / "wards.yaml", "--out", tmp_path / "run")
    text = file.read_text()
    file.write_text(text.replace("w4", "w3", 1))
    refused(command(*longer), "The data are not those", "(train: other contents)")
    file.write_text(text + "9,81,w4,1,0\n")
    refused(command(*longer), f"(train: {len(text)} bytes there, {len(text) + 12} here)")
    (tmp_path / "same.csv").write_text(text)
    succeeds(*longer, f"data_dir={tmp_path / 'same.csv'}")


def test_changed_files_of_leaf_are_noticed(tmp_path):
    def write(y):
        (tmp_path / "train").mkdir(exist_ok=True)
        content = {"users": ["a"], "user_data": {"a": {"x": [[1.0], [2.0]], "y": y}}}
        (tmp_path / "train" / "all.json").write_text(json.dumps(content))
        return listed_data(tiny(data="leaf", data_dir=str(tmp_path), split={}))

    before = write([0, 1])
    assert before == write([0, 1])
    (tmp_path / "data.json").write_text(json.dumps(before))
    assert changed_data(tmp_path, write([1, 0])) == ["train: other contents"]


def test_whole_clients_held_out_are_not_among_the_clients(file):
    options = {"hold_out": "clients", "test": 0.2, "validation": 0.25}
    found = build(wards(file, clients=3, data_options=options))
    held = [set((part.inputs[:, 0].long() % WARDS).tolist()) for part in (*found.shards, found.validation)]
    assert all(len(own) == 1 for own in held) and len(set.union(*held)) == 4


def test_the_likelihood_says_whether_targets_are_numbers(file):
    options = {"target": "days", "ignore": ["ill"], "standardise": True}
    found = build(wards(file, likelihood="gaussian", data_options=options))
    assert found.validation.targets.dtype == torch.float32 and found.num_classes == 1


@pytest.mark.slow
def test_the_guides_own_table_end_to_end(tmp_path, monkeypatch):
    """The file and the configuration of guides/data.md, with more rows than the page shows."""
    monkeypatch.chdir(tmp_path)
    table = next(block.text for block in PAGE if block.text.startswith("hospital,"))
    text = next(block.text for block in PAGE if block.file == "patients.yaml")
    assert len([line for line in text.splitlines() if re.match(r"\w", line)]) <= 12
    header, *shown, _ = table.splitlines()
    columns = len(header.split(","))
    assert all(len(line.split(",")) == columns for line in shown)
    hospitals = yaml.safe_load(text)["clients"]
    rows = [f"h{i % hospitals},{30 + i % 40},{100 + i % 7},{i % 2},{'yes' if i % 40 > 20 else 'no'}"
            for i in range(40 * hospitals)]  # fmt: skip
    Path("patients.csv").write_text("\n".join([header, *rows]) + "\n")
    Path("patients.yaml").write_text(text)
    few = ["rounds=3", "evaluate_every=3"]
    for name, more in (("run", []), ("again", ["workers=2"])):
        succeeds("run", "patients.yaml", "--out", name, "--set", *few, *more)
    assert math.isfinite(read_summary("run")["test_nll"])
    assert Path("run/state.safetensors").read_bytes() == Path("again/state.safetensors").read_bytes()
    refused(command("run", "patients.yaml", "--set", "clients=9", "cohort=2"), "set clients: ")
