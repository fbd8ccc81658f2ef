"""Runs that clients or nobody evaluate, and what is told of many hyperparameters."""

import dataclasses
import io
import json

import pytest
import safetensors.torch
import torch
from command_line import shown
from layout import assert_nothing_overlaps
from rich.console import Console
from tiny import tiny, tiny_training

from fedpart import HyperModule
from fedpart.data import Splits, load_splits
from fedpart.nn.hyperparameters.base import MOST, told
from simulations.building.experiment import build
from simulations.folders.run_directory import METRICS, read_metrics, read_summary
from simulations.results.curves import Run
from simulations.results.pictures.run_figures import plot_run, run_figure
from simulations.results.psi_parts import compact
from simulations.results.report.page import write_report
from simulations.results.report.sections import evaluation_section
from simulations.results.scores import DASH, client_text
from simulations.results.terminal.panel import panel
from simulations.results.terminal.progress import Progress
from simulations.running.run import run_experiment

KEYS = tuple(f"client_{key}{of}" for key in ("accuracy", "nll") for of in ("", "_worst_decile", "_chunks"))
VARIED = ("seconds", "client_seconds", "workers", "config_hash")


def lines(folder):
    return [{**line, "seconds": 0, "client_seconds": 0} for line in read_metrics(folder)]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    folder, console = tmp_path_factory.mktemp("clients") / "run", Console(width=200, file=io.StringIO())
    run_experiment(tiny(evaluation="clients"), folder, progress=Progress(console))
    return folder, console.file.getvalue() + shown(panel(read_summary(folder), folder))


def test_evaluation_rounds_have_the_clients_scores_beside_the_central_ones(evaluated):
    folder, text = evaluated
    for line in read_metrics(folder):
        there = line["round"] in (2, 4, 5)
        assert all((key in line) == there for key in (*KEYS, "evaluation_bytes", "val_nll"))
    for line in (folder / METRICS).read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    last, summary = read_metrics(folder)[-1], read_summary(folder)
    assert {key: summary[key] for key in KEYS} == {key: last[key] for key in KEYS}
    assert 0.2 <= summary["held_out_share"] < 0.4  # rounded up, client by client
    assert f"{last['client_accuracy']:.1%} on examples that clients hold out" in text
    assert f"clients' accuracy {last['client_accuracy']:.1%} (worst tenth" in text


@pytest.mark.slow
def test_worker_processes_give_the_same_files(evaluated, tmp_path):
    run_experiment(tiny(evaluation="clients", workers=2), tmp_path / "two")
    assert lines(evaluated[0]) == lines(tmp_path / "two")
    one, two = (read_summary(folder) for folder in (evaluated[0], tmp_path / "two"))
    assert all(one[key] == two[key] for key in one if key not in VARIED)


def test_a_run_that_goes_on_evaluates_as_an_undisturbed_one(evaluated, tmp_path):
    run_experiment(tiny(evaluation="clients", rounds=4), tmp_path / "run")
    run_experiment(tiny(evaluation="clients"), tmp_path / "run", resume=True)
    assert lines(tmp_path / "run") == lines(evaluated[0])


@pytest.mark.slow
def test_a_run_that_nobody_evaluates_knows_its_lml(tmp_path):
    console = Console(width=200, file=io.StringIO())
    summary = run_experiment(tiny(evaluation="none", rounds=12), tmp_path, progress=Progress(console))
    found = [line["lml"] for line in read_metrics(tmp_path) if line["lml"] is not None]
    last = found[len(found) // 2 :]
    assert 10 <= len(found) < 20 and summary["lml_last10"] == pytest.approx(sum(last) / len(last))
    assert summary["val_accuracy"] is summary["test_accuracy"] is summary["test_nll"] is None
    assert not any(key in line for line in read_metrics(tmp_path) for key in ("val_nll", *KEYS))
    assert f"{summary['lml_last10']:.3f} nats per example of clients" in shown(panel(summary, tmp_path))
    assert console.file.getvalue().count("L_ML -") >= 4  # of rounds in which there would be an evaluation
    figure = run_figure(Run.load(tmp_path))
    each = "[nats per example]"
    assert [ax.get_ylabel() for ax in figure.axes] == [f"log-likelihood\n{each}", f"loss {each}"]


def test_the_picture_has_lml_beside_the_validation_log_likelihood(evaluated):
    run = Run.load(evaluated[0])
    figure = run_figure(run)
    accuracies, likelihood, _ = figure.axes
    named = {line.get_label(): line for line in accuracies.lines}
    assert [*named] == ["validation", "clients", "worst tenth of clients"]
    assert (named["clients"].get_ydata() == 100 * run.curve("client_accuracy")[1]).all()
    raw, _, validation = likelihood.lines
    assert (raw.get_ydata() == run.curve("lml")[1]).all()
    assert (validation.get_ydata() == -run.curve("val_nll")[1]).all()
    assert_nothing_overlaps(figure)


def ink(data_dir=None):
    """How much of each digit is written on: a number to predict."""
    digits = load_splits("digits")
    parts = [part.relabelled(part.inputs.mean((1, 2, 3))[:, None]) for part in digits.parts().values()]
    return Splits(*parts, num_classes=1)


@pytest.mark.slow
def test_without_classes_the_loss_is_told_in_the_place_of_the_accuracy(tmp_path):
    folder, console = tmp_path / "run", Console(width=200, file=io.StringIO())
    options = {"likelihood": "gaussian", "split": {"recipe": "iid"}, "rotated": False}
    config = tiny(evaluation="clients", data=f"{__name__}:ink", **options)
    summary = run_experiment(config, folder, progress=Progress(console))
    assert summary["client_accuracy"] is summary["client_accuracy_chunks"] is None
    text, progress = shown(panel(summary, folder)), console.file.getvalue()
    assert "loss" in text and "accuracy" not in text
    worst, chunks = summary["client_nll_worst_decile"], summary["client_nll_chunks"]
    assert worst >= summary["client_nll"] and f"{worst:.3f} nats for the worst tenth of clients" in text
    assert f"{summary['test_nll']:.3f} nats on test data" in text
    assert all(f"{value:.3f} nats in chunk {k}" in text for k, value in enumerate(chunks, 1) if value)
    assert f"clients' loss {summary['client_nll']:.3f} (worst tenth {worst:.3f})" in progress
    run = Run.load(folder)
    figure = run_figure(run)
    named = {line.get_label(): line for line in figure.axes[-1].lines}
    assert [*named] == ["training", "validation", "clients", "worst tenth of clients"]
    assert (named["clients"].get_ydata() == run.curve("client_nll")[1]).all()
    assert_nothing_overlaps(figure)
    section = evaluation_section({"partitioned": [run]})
    assert section.charts[0].title == "Loss on the clients over rounds"
    assert all(f"{value:.3f} nats" in " ".join(section.lines) for value in chunks if value is not None)
    (table,), each = section.tables, summary["client_nll_each"]
    assert table.rows == [[str(i), DASH if x is None else f"{x:.3f}"] for i, x in enumerate(each)]
    run.summary["client_names"] = names = [f"d\x1b[31mora {i} {'x' * 60}" for i in range(len(each))]
    without = dataclasses.replace(run, summary={**summary, "client_names": []})
    (table,) = evaluation_section({"partitioned": [run], "fedavg": [without]}).tables
    assert [row[0] for row in table.rows] == [client_text(i, names) for i in range(len(each))]


def test_clients_with_a_part_of_the_validation_data():
    """By label, clients have the mixture that they have in training."""
    split = {"recipe": "per_label", "alpha": 0.3}
    points = {"training_points": 300, "validation_points": 200}
    experiment = build(tiny(evaluation="clients", evaluation_share=None, split=split, **points))
    own = [shard.evaluation for shard in experiment.shards]
    digest = sorted(float(image.double().sum()) for part in own for image in part.inputs)
    assert digest == sorted(float(image.double().sum()) for image in experiment.validation.inputs)
    learned, scored = (
        torch.stack([torch.bincount(data.targets, minlength=10) for data in shards])
        for shards in (experiment.shards, own)
    )
    apart = (learned / learned.sum(0) - scored / scored.sum(0)).abs()
    assert (apart <= 1.01 / learned.sum(0) + 1.01 / scored.sum(0)).all()  # each is within one of its share
    assert experiment.protocol.settings.max_examples >= max(map(len, own))
    with pytest.raises(ValueError, match=r"evaluation_share: null clients share the validation data\. 6 cl"):
        build(tiny(evaluation="clients", evaluation_share=None, validation_points=5))


MODEL = {
    "model": "mlp",
    "model_options": {"hidden": [64]},
    "hyperparameters": {"affine": None, "dropout": None, "mask": None, "names": ["fc1.*"]},
}


class Field(HyperModule):
    hyperparameters = ("few", "many")

    def __init__(self):
        super().__init__()
        self.few = torch.nn.Parameter(torch.ones(2))
        self.many = torch.nn.Parameter(torch.ones(MOST + 1))


def test_numbers_are_told_one_by_one_up_to_a_thousand_and_norms_of_many_tensors_are_one_in_a_line():
    assert told(torch.ones(MOST // 10, 10)) == [1.0] * MOST
    norm = pytest.approx(2 * (MOST + 1) ** 0.5)
    assert told(torch.full((MOST + 1,), 2.0)) == {"norm": norm, "numbers": MOST + 1}
    assert Field().physical() == {"few[0]": 1.0, "few[1]": 1.0, "many.norm": pytest.approx((MOST + 1) ** 0.5)}
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


@pytest.mark.slow
def test_people_see_a_row_for_each_tensor(folder):
    assert shown(panel(read_summary(folder), folder)).count("fc1.weight") == 1
    assert plot_run(folder)
    if json.loads((folder / "summary.json").read_text()).get("rounds"):
        page = write_report(folder).read_text()
        assert 0 < page.count("fc1.weight") < 10 and "fc1.weight[" not in page


@pytest.mark.slow
def test_a_longer_run_keeps_no_score_of_clients_or_on_other_data_of_its_former_last_rounds(tmp_path):
    grown, through = tmp_path / "grown", tmp_path / "through"
    for evaluation, more in (
        ("clients", {}),
        ("central", {"validation_points": 20, "full_validation_rounds": 2}),
    ):
        settings = {"evaluation": evaluation, "evaluate_every": 2, **more}
        run_experiment(tiny(rounds=3, **settings), grown / evaluation)
        run_experiment(tiny(rounds=6, **settings), grown / evaluation, resume=True)
        run_experiment(tiny(rounds=6, **settings), through / evaluation)
    assert lines(grown / "clients") == lines(through / "clients")
    totals = (read_summary(folder / "clients")["evaluation_bytes"] for folder in (grown, through))
    assert len(set(totals)) == 1
    scores = [[line.get("val_nll") for line in lines(folder / "central")] for folder in (grown, through)]
    assert scores[0][1] is None and scores[1][1] is not None  # round 2 was scored on all data
    assert scores[0][2:] == scores[1][2:]
