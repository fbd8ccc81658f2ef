"""What a federated run is evaluated on, and with how many samples."""

import pytest
import torch
from tiny import tiny

from fedpart import Federation
from simulations.building.experiment import build
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.running.run import run_experiment


def test_the_last_rounds_are_evaluated_on_all_validation_data(tmp_path):
    both = {"validation_points": 30, "full_validation_rounds": 2}
    ways = {"few": {"validation_points": 30}, "all": {"validation_points": None}, "both": both}
    runs = {}
    for name, changes in ways.items():
        run_experiment(tiny(rotated=True, evaluate_every=1, **changes), tmp_path / name)
        runs[name] = [line["val_nll"] for line in read_metrics(tmp_path / name)]
    assert len(runs["both"]) == 5
    assert runs["both"] == [*runs["few"][:3], *runs["all"][3:]]
    assert runs["few"][4] != runs["all"][4]


def test_other_samples_in_evaluations_change_nothing_else(tmp_path):
    folders = [tmp_path / str(samples) for samples in (None, 1, 9)]
    for folder, samples in zip(folders, (None, 1, 9), strict=True):
        run_experiment(tiny(**{} if samples is None else {"evaluation_samples": samples}), folder)
    assert len({(folder / "state.safetensors").read_bytes() for folder in folders}) == 1
    assert len({read_summary(folder)["test_nll"] for folder in folders}) == 3


@pytest.mark.parametrize("samples", [(4, 1), (1, 4)])
def test_an_evaluation_with_other_samples_is_that_of_a_task_with_these(samples):
    experiment, other = (build(tiny(samples=s)) for s in samples)
    found = experiment.start().evaluate(experiment.validation, samples=samples[1])
    assert found == pytest.approx(Federation(other.protocol).evaluate(other.validation), abs=1e-6)
    assert torch.equal(experiment.validation.inputs, other.validation.inputs)
