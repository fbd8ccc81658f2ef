"""Building: a finished run read back, transforms of a file, images as the network gets them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import fedpart as command
from sizes import TWO
from tiny import tiny, tiny_training, unnamed
from torch import nn

import fedpart
from simulations.building.data import client_shards, load_data
from simulations.building.experiment import build
from simulations.building.task import build_task
from simulations.config.load import Config, ExperimentConfig, load_config
from simulations.folders.run_directory import read_summary
from simulations.results.pictures.transform_figures import examples, run_blocks
from simulations.running.run import run_experiment

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


@pytest.mark.parametrize(
    "config",
    [
        tiny(rounds=2),
        tiny(rounds=1, method="augerino"),  # its affine family is not the configuration's
        tiny(rounds=1, evaluation_samples=1),
        tiny(  # the weights of both sizes are composed
            rounds=1,
            method="fedavg",
            model="digits_cnn",
            architectures=TWO,
            sharing={"kind": "basis"},
        ),
        tiny_training(keep_best=True),
        tiny_training(iterations=10, method="separate"),
        tiny_training(
            iterations=10,
            method="validation",
            chunks=[0.8, 0.2],
            method_options={"validation": {"finetune_epochs": 1}},  # iterations beyond the configuration's
        ),
    ],
)
def test_it_scores_as_the_run_has(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, test = run_experiment(config, "run"), build(config).test
    monkeypatch.setattr("simulations.building.reading.load_data", None)  # the data need not be there
    run = fedpart.load("run")
    samples = getattr(config, "evaluation_samples", None)
    found = run.state.evaluate(test, samples=samples)
    assert (found["nll"], found.get("accuracy")) == (summary["test_nll"], summary["test_accuracy"])
    assert run.psi == summary["psi"] and run.config == config.resolved()
    assert run.predict(test.inputs[:3]).shape == run.module()(test.inputs[:3]).shape


def test_of_retraining_the_run_that_had_found_psi_may_be_gone() -> None:
    run_experiment(tiny(rounds=1), "found")
    done = command("retrain", "found", "iterations=2", "--out", "again")
    assert done.exit_code == 0, done.output
    found = fedpart.load("found").psi
    shutil.rmtree("found")
    assert fedpart.load("again").psi == found


def test_a_run_from_before_summaries_named_the_inputs_is_read_with_its_data() -> None:
    summary = run_experiment(tiny(rounds=1), "run")
    kept = {key: value for key, value in summary.items() if key not in ("inputs", "num_classes")}
    before = fedpart.load("run")
    (unnamed(Path("run")) / "summary.json").write_text(json.dumps(kept))
    assert "inputs" not in (read_summary("run") or {"inputs": ()})
    assert torch.equal(fedpart.load("run").state.w, before.state.w)


PAIR = {"left": (3,), "right": (3,)}


class Both(nn.Module):
    """Adds what it sees on both sides."""

    def __init__(self, num_classes: int, input_shape: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.fc = nn.Linear(*input_shape["left"], num_classes)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.fc(left) + self.fc(right)


def test_a_transform_acts_on_the_part_that_a_file_names(tmp_path: Path) -> None:
    path = tmp_path / "parts.yaml"
    path.write_text(
        "model: test_reading:Both\nhyperparameters: {affine: null, transforms: [{use: noise, part: right}]}\n"
    )
    task = build_task(load_config(path), 3, PAIR)
    x = {"left": torch.zeros(4, 3), "right": torch.zeros(4, 3)}
    seen = task.transformed(task.psi_space.initial(), x)
    assert not seen["left"].any() and seen["right"].all()


@pytest.mark.parametrize("hidden", [[8], [8, 4], []])
def test_lists_are_sequences(hidden: list[int]) -> None:
    config = ExperimentConfig.from_dict(
        {"model": "mlp", "model_options": {"hidden": hidden}, "hyperparameters": {"affine": None}}
    )
    assert len(
        [layer for layer in build_task(config, 3, (5,)).module if isinstance(layer, nn.Linear)]
    ) == 1 + len(hidden)


NORMALISE = {"mean": [0.2], "std": [0.4]}


def test_images_are_normalised_after_they_are_rotated():
    plain, found = (
        load_data(tiny(rotated=True, test_points=None, **more)) for more in ({}, {"normalise": NORMALISE})
    )
    for before, after in zip(plain.parts().values(), found.parts().values(), strict=True):
        torch.testing.assert_close(after.inputs, (before.inputs - 0.2) / 0.4)
        assert after.groups.equal(before.groups) and after.targets.equal(before.targets)


def test_clients_own_examples_are_too():
    own = {"evaluation": "clients", "evaluation_share": None}
    plain, found = (tiny(**own, **more) for more in ({}, {"normalise": NORMALISE}))
    for before, after in zip(
        client_shards(plain, load_data(plain)), client_shards(found, load_data(found)), strict=True
    ):
        torch.testing.assert_close(after.evaluation.inputs, (before.evaluation.inputs - 0.2) / 0.4)


def test_pictures_of_transforms_have_the_images_own_colours(tmp_path):
    config = tiny(rounds=1, normalise=NORMALISE)
    run_experiment(config, tmp_path / "run")
    (_, shown), *others = run_blocks(tmp_path / "run", load_data(config))
    torch.testing.assert_close(shown[:, 0], examples(load_data(tiny()))[0])
    assert others
