"""Weights as hyperparameters: thousands of numbers are told by their norm wherever a run tells its psi."""

import io
import json

import pytest
import safetensors.torch
import torch
from rich.console import Console
from tiny import tiny, tiny_training

from fedpart import HyperModule
from fedpart.nn.hyperparameters.base import MOST, told
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.results.pictures.run_figures import plot_run
from simulations.results.psi_parts import compact
from simulations.results.report.page import write_report
from simulations.results.terminal.panel import panel
from simulations.running.run import run_experiment

MODEL = {
    "model": "mlp",
    "model_options": {"hidden": [64]},
    "hyperparameters": {"affine": None, "dropout": None, "mask": None, "names": ["fc1.*"]},
}


def test_numbers_are_told_one_by_one_up_to_a_thousand():
    assert told(torch.ones(MOST // 10, 10)) == [1.0] * MOST
    assert told(torch.full((MOST + 1,), 2.0)) == {
        "norm": pytest.approx(2 * (MOST + 1) ** 0.5),
        "numbers": MOST + 1,
    }


class Field(HyperModule):
    hyperparameters = ("few", "many")

    def __init__(self):
        super().__init__()
        self.few = torch.nn.Parameter(torch.ones(2))
        self.many = torch.nn.Parameter(torch.ones(MOST + 1))


def test_a_module_of_ones_own_too():
    assert Field().physical() == {"few[0]": 1.0, "few[1]": 1.0, "many.norm": pytest.approx((MOST + 1) ** 0.5)}


def test_norms_of_many_tensors_are_one_in_a_line():
    norms = {f"stage{i}.weight.norm": 2.0 for i in range(4)}
    assert compact({"gain": 1.0, **norms}) == "4 tensors of weights, norm 4, gain 1"
    three = dict(list(norms.items())[:3])
    assert compact(three) == "stage0.weight.norm 2, stage1.weight.norm 2, stage2.weight.norm 2"


@pytest.fixture(scope="module", params=["federated", "centralised"])
def folder(request, tmp_path_factory):
    """A run whose psi has 64 * 64 or 30 * 64 weights."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    config = tiny if request.param == "federated" else tiny_training
    run_experiment(config(**MODEL), out)
    return out


def test_lines_and_summary_have_the_norm_and_files_have_all(folder):
    saved = safetensors.torch.load_file(folder / "state.safetensors")["psi/fc1.weight"]
    assert saved.numel() > MOST
    lines = read_metrics(folder)
    for line in lines:
        assert line["psi"]["raw"]["fc1.weight"]["numbers"] == saved.numel()
        assert len(line["psi"]["raw"]["fc1.bias"]) == 64
        assert line["psi"]["physical"].keys() == {"fc1.weight.norm", "fc1.bias.norm"}
    told_last = lines[-1]["psi"]["raw"]["fc1.weight"]["norm"]
    assert told_last == pytest.approx(saved.norm().item())
    assert lines[0]["psi"]["raw"]["fc1.weight"]["norm"] != told_last
    assert read_summary(folder)["psi"]["fc1.weight.norm"] == pytest.approx(told_last)
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    (adam,) = state["optimiser_psi"]
    assert adam["exp_avg"].numel() == adam["exp_avg_sq"].numel() == state["psi"].numel() == saved.numel() + 64
    assert adam["exp_avg"].count_nonzero() > MOST


def test_people_see_a_row_for_each_tensor(folder):
    console = Console(file=io.StringIO(), width=200)
    console.print(panel(read_summary(folder), folder))
    assert console.file.getvalue().count("fc1.weight") == 1
    assert plot_run(folder)
    if json.loads((folder / "summary.json").read_text()).get("rounds"):
        shown = write_report(folder).read_text()
        assert 0 < shown.count("fc1.weight") < 10 and "fc1.weight[" not in shown
