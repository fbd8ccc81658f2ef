"""What a federated run is evaluated on, and with how many samples."""

import pytest
import torch
from tiny import tiny

from fedpart import Federation
from simulations.building.experiment import build
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.running.run import run_experiment


def test_the_last_rounds_are_evaluated_on_all_validation_data(tmp_path):
    runs = {}
    for name, changes in {
        "few": {"validation_points": 30},
        "all": {"validation_points": None},
        "both": {"validation_points": 30, "full_validation_rounds": 2},
    }.items():
        run_experiment(tiny(rotated=True, evaluate_every=1, **changes), tmp_path / name)
        runs[name] = [line["val_nll"] for line in read_metrics(tmp_path / name)]
    assert len(runs["both"]) == 5
    assert runs["both"] == [*runs["few"][:3], *runs["all"][3:]]
    assert runs["few"][4] != runs["all"][4]


def test_other_samples_in_evaluations_change_nothing_else(tmp_path):
    for name, changes in {
        "same": {},
        "fewer": {"evaluation_samples": 1},
        "more": {"evaluation_samples": 9},
    }.items():
        run_experiment(tiny(**changes), tmp_path / name)
    states = [(tmp_path / name / "state.safetensors").read_bytes() for name in ("same", "fewer", "more")]
    assert states[0] == states[1] == states[2]
    tests = [read_summary(tmp_path / name)["test_nll"] for name in ("same", "fewer", "more")]
    assert len(set(tests)) == 3


@pytest.mark.parametrize("samples", [(4, 1), (1, 4)])
def test_an_evaluation_with_other_samples_is_that_of_a_task_with_these(samples):
    experiment, other = (build(tiny(samples=s)) for s in samples)
    found = experiment.start().evaluate(experiment.validation, samples=samples[1])
    assert found == pytest.approx(Federation(other.protocol).evaluate(other.validation), abs=1e-6)
    assert torch.equal(experiment.validation.inputs, other.validation.inputs)
