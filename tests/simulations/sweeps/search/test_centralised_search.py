"""A search over centralised runs: the paper's random search (App. G), in miniature."""

import os

import torch
import yaml
from command_line import fedpart
from rich.console import Console
from safetensors.torch import load_file
from tiny import tiny_training

from fedpart import AffineAugmentation
from simulations.config.load import TrainingConfig, load_config
from simulations.folders.run_directory import read_metrics
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.search.search import run_search

NAMES = AffineAugmentation.components["lila"]
DRAWN = {
    "data": "digits",
    "model": "digits_cnn",
    "model_options": {},
    "method": "none",
    "method_options": {"none": {"augment": True}},
    "hyperparameters": {"affine": {"family": "lila", "initial": {}}, "dropout": None},
    "iterations": 4,
    "evaluate_every": 2,
}
SPACE = {f"hyperparameters.affine.initial.{name}": [0.0, 0.5] for name in NAMES}


def searched(space=SPACE, trials=3, objective="val_accuracy", **changes):
    section = {"space": space, "trials": trials, "sampler": "random", "objective": objective}
    return tiny_training(**{**DRAWN, **changes, "search": section})


def run(config, out):
    with open(os.devnull, "w") as nowhere:
        return run_search(config, out, CellRunner(console=Console(file=nowhere)))


def test_every_draw_is_kept_to_the_bit_and_a_longer_search_goes_on(tmp_path):
    file, out = tmp_path / "search.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(searched(trials=1).resolved()))
    assert fedpart("search", file, "--out", out).exit_code == 0
    first = out / "trials" / "000" / "state.safetensors"
    before = first.stat().st_mtime_ns
    found = run(searched(trials=2), out)
    assert first.stat().st_mtime_ns == before
    for row in found.rows:
        folder = out / "trials" / f"{row.number:03d}"
        drawn = torch.tensor([row.values[f"hyperparameters.affine.initial.{name}"] for name in NAMES])
        assert torch.equal(load_file(folder / "state.safetensors")["psi/affine.range"], drawn)
        assert [line["iteration"] for line in read_metrics(folder)] == [2, 4]
    assert found.rows[0].values != found.rows[1].values
    assert found.spent.rounds == 2 * 4 and found.spent.bytes == 0
    best = load_config(out / "best.yaml", kind=TrainingConfig)
    assert best.hyperparameters.affine.initial == {
        key.rpartition(".")[2]: value for key, value in found.best.values.items()
    }


def test_training_that_fails_is_a_failed_trial_and_the_search_goes_on(tmp_path):
    space = {"optimiser.learning_rate": {"choice": [0.001, 1e30]}}
    result = run(searched(space=space, trials=3), tmp_path / "out")
    states = {row.values["optimiser.learning_rate"]: row.state for row in result.rows}
    assert states == {0.001: "complete", 1e30: "failed"}
