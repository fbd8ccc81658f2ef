"""Selection by L_ML: its runs, its files, and what it says."""

import io
import json
import math
import re
import sys
from pathlib import Path

import pytest
from command_line import fedpart, refused, shown, succeeds
from layout import assert_nothing_overlaps
from rich.console import Console
from tiny import tiny_training, tiny_training_file

from simulations.config.load import ConfigError
from simulations.errors import RunError
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.results.curves import Run
from simulations.results.pictures.run_figures import run_figure
from simulations.results.pictures.sweep_figures import selection_figure
from simulations.results.selection import Column, Selection
from simulations.results.terminal.progress import Progress
from simulations.sweeps.cell_runner import CellRunner, SweepIncomplete
from simulations.sweeps.select import plan, run_selection

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

SELECT = {"key": "hyperparameters.mask.kept", "values": [5, 15, 30], "seeds": 2}


def scored(value, seed, lml):
    return {
        "iterations": 30, "seed": seed, "lml": lml, "seconds": 1.0,
        "train_accuracy": 0.9, "train_nll": -0.01 * value,
        "test_accuracy": 0.8 + lml / 1000, "test_nll": -lml / 100,
    }  # fmt: skip


def columns_of(scores, values=(5, 15, 30), **more):
    """The selection of these summaries, by value, of one column."""
    config = tiny_training(select={**SELECT, "values": list(values), "seeds": 1, **more})
    column = Column.of("partitioned", "lml", config, {str(value): own for value, own in scores.items()})
    return Selection(config.select.key, [column], [], config), column


class Pretends:
    """Runs a cell by writing its folder: L_ML peaks at 15, on seed 1 at 30."""

    def __init__(self, fail=None):
        self.fail, self.ran = fail, []

    def __call__(self, config, out, *, resume=False, progress=None):
        value = config.hyperparameters.mask.kept
        self.ran.append((value, config.seed, config.data_seed))
        if value == self.fail:
            raise ValueError("This one fails.")
        lml = {5: -30.0, 15: -10.0, 30: -12.0 if config.seed == 0 else -9.5}[value]
        out.mkdir(parents=True)
        (out / "config.yaml").write_text(json.dumps(config.resolved()))
        (out / "summary.json").write_text(json.dumps(scored(value, config.seed, lml)))
        return {}


@pytest.mark.slow
def test_every_value_is_trained_on_the_data_of_its_seed_and_the_picture_shows_each_measure(tmp_path):
    runner = Pretends()
    config = tiny_training(select=SELECT, seed=0, data_seed=7)
    found = run_selection(config, tmp_path / "s", CellRunner(run=runner))
    assert runner.ran == [(v, i, 7 + i) for i in (0, 1) for v in (5, 15, 30)]
    (column,) = found.columns
    assert column.best == 15 and column.best_per_seed == {0: 15, 1: 30}
    row = column.rows[2]
    assert row.lml is not None and row.lml.mean == pytest.approx(-10.75)
    assert row.lml.error == pytest.approx(1.25)  # std(ddof=1) / sqrt(2)
    assert row.train_log_likelihood is not None and row.train_log_likelihood.mean == pytest.approx(0.3)
    assert column.rank_correlation["test_accuracy"] == pytest.approx(1.0)

    summary = json.loads((tmp_path / "s" / "summary.json").read_text())
    assert summary["best_k"] == 15
    assert summary["best_per_seed"] == {"0": 15, "1": 30}
    assert [row["value"] for row in summary["rows"]] == [5, 15, 30]
    assert summary["rows"][1]["lml"]["mean"] == -10.0
    assert (tmp_path / "s" / "select.png").is_file()
    lml, accuracy, likelihood = (figure := selection_figure(found)).axes
    assert list(lml.lines[0].get_ydata()) == pytest.approx([-30.0, -10.0, -10.75])
    assert lml.lines[1].get_xdata()[0] == 15
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["train", "test"]
    assert_nothing_overlaps(figure)
    assert likelihood.get_xlabel() == "hyperparameters.mask.kept"
    assert list(likelihood.lines[0].get_ydata()) == pytest.approx([0.05, 0.15, 0.30])

    again = Pretends()
    run_selection(config, tmp_path / "s", CellRunner(run=again))
    assert again.ran == []  # finished runs are kept
    more = tiny_training(select={**SELECT, "values": [5, 15, 30, 30.5]}, data_seed=7)
    with pytest.raises(ConfigError, match=r"30\.5"):
        plan(more, tmp_path / "s")


@pytest.mark.parametrize(("examples", "text"), [(40, "79 ± 0"), (1000, "79.2 ± 0.4"), (None, "79.2 ± 0.4")])
def test_no_more_digits_than_the_examples_that_were_scored_hold(examples, text):
    own = {} if examples is None else {"test_examples": examples}
    scores = [{"test_accuracy": 0.7875 + 0.0085 * seed} | own for seed in (0, 1)]
    runs = [scored(5, seed, -8.2 + 0.8 * seed) | scores[seed] for seed in (0, 1)]
    selection, column = columns_of({5: runs}, [5], seeds=2)
    head, (row,) = selection.cells(column)
    assert row[head.index("test\naccuracy\n[%]")] == text


def test_a_terminal_gets_the_bar_of_each_run(tmp_path):
    given = []

    def run(config, out, *, progress=None, **_):
        given.append(progress)

    config = tiny_training(select={**SELECT, "values": [5]})
    for terminal in (True, False):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=80)
        progress = Progress(console)
        run_selection(config, tmp_path, CellRunner(run=run, progress=progress, console=console))
        assert given == [progress if terminal else None] * 2
        assert ("Run 1 of 2: kept 5, seed 0" in stream.getvalue()) == terminal
        given.clear()


@pytest.mark.parametrize(("best", "side"), [(5, "smallest"), (30, "largest"), (15, None)])
def test_the_best_value_at_the_edge_of_what_was_tried_is_pointed_out(best, side):
    selection, column = columns_of({value: [scored(value, 0, -abs(value - best))] for value in (5, 15, 30)})
    warned = " ".join(selection.warnings(column))
    assert (f"{best} is the {side} value" in warned) == (side is not None) == bool(warned)


@pytest.mark.parametrize("seen", [0.3, 0.29, 0.1])
def test_networks_that_have_had_no_time_to_overfit_are_pointed_out(seen):
    """A subnetwork's loss on its own chunks against that on the next; the full network has no next."""
    whole, runs = {"examples": 120, "train": {"nll": 0.0}, "next": None}, {}
    for value, loss in ((5, 0.3), (15, 0.3), (30, seen)):
        parts = [{"train": {"nll": loss}, "next": {"nll": 0.3}}, whole]
        runs[value] = [scored(value, 0, -abs(value - 15)) | {"subnetworks": parts}]
    selection, column = columns_of(runs)
    warned = selection.warnings(column)
    assert any("no time to overfit" in text for text in warned) == (seen > 0.2)


@pytest.mark.slow
def test_a_run_that_fails_does_not_lose_the_others(tmp_path):
    with pytest.raises(SweepIncomplete, match=r"2 of 6 runs failed[\s\S]*kept 5, seed 0: This one fails"):
        run_selection(tiny_training(select=SELECT), tmp_path, CellRunner(run=Pretends(fail=5)))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best_k"] == 15
    assert summary["best_per_seed"] == {}  # a seed without all values cannot say
    assert [row["lml"] is None for row in summary["rows"]] == [True, False, False]
    assert len(summary["failures"]) == 2
    run_selection(tiny_training(select=SELECT), tmp_path, CellRunner(run=Pretends()))
    assert json.loads((tmp_path / "summary.json").read_text())["failures"] == []


def test_values_are_compared_on_the_seeds_that_all_of_them_have():
    """The data of seed 1 are easier, whatever the value: 15 has no run on it."""
    evidences = {5: {0: -30.0, 1: -3.0}, 15: {0: -20.0}, 30: {0: -25.0, 1: -1.0}, 40: {}}
    runs = {v: [scored(v, seed, lml) for seed, lml in own.items()] for v, own in evidences.items()}
    selection, column = columns_of(runs, evidences, key="iterations", seeds=2)
    assert column.best == 15
    assert [row.lml and row.lml.mean for row in column.rows] == [-30.0, -20.0, -25.0, None]
    assert [row.seeds for row in column.rows] == [[0], [0], [0], []]
    assert column.rows[2].lml_per_seed == {0: -25.0, 1: -1.0}
    assert column.rank_correlation["test_accuracy"] == pytest.approx(1.0)
    assert "all numbers are of the 1 seed that every value with a result has" in shown(selection.table(), 80)
    assert "over 2 seeds" not in selection_figure(selection).get_suptitle()


def test_where_nothing_can_be_compared_nothing_is_named(tmp_path):
    stream = io.StringIO()

    def fails(*_, **__):
        raise RunError("This one fails.")

    with pytest.raises(SweepIncomplete):
        runner = CellRunner(run=fails, console=Console(file=stream))
        run_selection(tiny_training(select=SELECT), tmp_path, runner)
    assert "no L_ML on a seed that all values have" in stream.getvalue()
    assert "None" not in stream.getvalue() and "select.png" not in stream.getvalue()


def test_equal_scores_share_their_mean_rank():
    scores = {"test_accuracy": (0.3, 0.1, 0.1, 0.9), "test_nll": (1.0,) * 4}
    runs = {i: [scored(i, 0, lml) | {key: own[i - 1] for key, own in scores.items()}]
            for i, lml in enumerate((-3.0, -4.0, -2.0, -1.0), start=1)}  # fmt: skip
    found = columns_of(runs, runs, key="iterations")[1].rank_correlation
    # Ranks 2 1 3 4 and 3 1.5 1.5 4, mean 2.5: covariance 3 of sqrt(5 * 4.5).
    assert found["test_accuracy"] == pytest.approx(3 / math.sqrt(22.5))
    assert found["test_log_likelihood"] is None  # all equal
    two = {i: runs[i] for i in (1, 2)}
    assert (
        columns_of(two, two, key="iterations")[1].rank_correlation["test_accuracy"] is None
    )  # 1 or -1 anyway


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("values", "scale", "ticks"),
    [
        ([30, 5, 15], "linear", ["5", "15", "30"]),  # in the order of their size
        ([1e-4, 3e-3, 1e-2], "log", ["0.0001", "0.003", "0.01"]),
        ([5, 10, 11, 12, 13, 30], "linear", None),  # no room for a tick each
        ([[1, 0] * 15, [1] * 30, "x"], "linear", [", ".join(["1, 0"] * 15), ", ".join(["1"] * 30), "x"]),
    ],
)
def test_values_stand_where_they_can_be_read(values, scale, ticks):
    runs = {str(value): [scored(1, 0, -1.0 - i)] for i, value in enumerate(values)}
    figure = selection_figure(columns_of(runs, values)[0])
    assert_nothing_overlaps(figure)
    ax = figure.axes[0]
    assert ax.get_xscale() == scale
    if ticks is not None:
        labels = [
            " ".join(text.get_text().split()) for text in ax.get_xticklabels()
        ]  # long ones are in lines
        assert [label.strip("[]") for label in labels] == ticks
    x = list(ax.lines[0].get_xdata())
    assert x == sorted(x) and len(x) == len(values)


@pytest.mark.slow
def test_select_on_the_command_line(tmp_path):
    file = tiny_training_file(tmp_path, select={**SELECT, "seeds": 1})
    result = succeeds("select", file, "--values", "5,15", "--jobs", "2", "--out", "s")
    assert "L_ML is largest at" in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == "2 runs to do, 2 at a time."
    told = r"kept \d+, seed 0: L_ML -[\d.]+, test accuracy [\d.]+%, [\d.]+ s"
    for number, line in enumerate(lines[1:3], start=1):  # no terminal: one line for each run
        assert re.fullmatch(f"Finished {number} of 2: {told}", line)
    assert lines[3].split() == ["partitioned:", "hyperparameters.mask.kept"]
    for value in ("5", "15"):
        assert (Path("s") / value / "seed0" / "state.safetensors").is_file()
    again = fedpart("select", file, "--values", "5,15", "--out", "s")
    assert "2 of 2 runs were finished before" in again.stdout
    chosen = ("--set", "select.key=optimiser.learning_rate", "--values", "1e-3,3e-2", "--seeds", "1")
    assert fedpart("select", file, *chosen, "--out", "rates").stdout.startswith("2 runs to do, 1 at a time.")
    assert json.loads(Path("rates/summary.json").read_text())["values"] == [0.001, 0.03]


@pytest.mark.slow
def test_laplace_scores_plain_networks_beside(tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.sweeps.select.LAPLACE_EVERY", 20)
    section = {"seeds": 1, "values": [5, 30]}
    file = tiny_training_file(tmp_path, select=section, keep_best=True)
    result = succeeds("select", file, "--laplace", "--out", "s")
    summary = json.loads(Path("s/summary.json").read_text())
    lines, twin = read_metrics("s/laplace/5/seed0"), read_summary("s/laplace/5/seed0")
    assert [line["iteration"] for line in lines] == [20, 30]
    assert twin is not None and twin["evidence"] == "laplace"
    assert twin["lml"] == max(line["lml"] for line in lines)  # early stopping on its own objective
    assert twin["subnetworks"][0]["examples"] == 120  # one network on all data
    assert summary["laplace"]["rows"][0]["lml"]["mean"] == twin["lml"]
    assert summary["laplace"]["best_k"] in (5, 30)
    assert (summary["evidence"], summary["laplace"]["evidence"]) == ("lml", "laplace")
    assert "Laplace evidence is largest at" in result.stdout


def test_values_that_differ_by_their_sign_have_folders_of_their_own(tmp_path):
    signed = {"key": "optimiser.learning_rate", "values": [0.1, 0.2, -0.1]}
    with pytest.raises(ConfigError, match=r"with the value -0\.1: "):  # and not that 0.1 is there twice
        plan(tiny_training(select=signed), tmp_path)


def test_what_cannot_be_selected_is_refused_before_anything_is_run(tmp_path, monkeypatch):
    refused(fedpart("select", tiny_training_file(tmp_path)), "does not say what to select")
    judged = ("train", tiny_training_file(tmp_path), "--set", "evidence=laplace")
    refused(fedpart(*judged), "use it with the method 'none'")
    file = tiny_training_file(tmp_path, select=SELECT)
    examples, estimates = "each is of other examples", "each estimates it in another way"
    last = "first 1 to 30 of 30 features, got 0"  # seen before 5 is trained
    for key, values, *says in (
        ("", "5,5", "5 twice"),
        ("", "5,15,5.0", "5.0 twice"),
        ("", "5,[1", "select.values=[5,[1] is not valid YAML"),
        ("", "", "it should be a list of at least 1"),
        ("", "5,0", "kept 0, seed 0: ", last),
        ("hyperparameters.mask.keep", "5,15", "did you mean 'kept'?"),
        ("chunks", "[0.5,0.5],[0.8,0.2]", "chunks cannot be compared", examples),
        ("data_options", "{},{}", "Values of data_options cannot be compared", examples),
        ("rotated", "true,false", "Values of rotated cannot be compared", examples),
        ("evidence", "lml,laplace", "Values of evidence cannot be compared", estimates),
        ("method", "partitioned,separate", "Values of method cannot be compared", estimates),
    ):
        chosen = ("--set", f"select.key={key}") if key else ()
        refused(fedpart("select", file, *chosen, "--values", values), *says)
    refused(fedpart("select", file, "--set", "method=none"), "compares L_ML")
    learned = {"key": "iterations", "values": [10, 20]}  # with the tiny experiment's mask
    same = "--laplace: A Laplace approximation needs inputs that are the same each time"
    refused(fedpart("select", tiny_training_file(tmp_path, select=learned), "--laplace"), same)
    monkeypatch.setitem(sys.modules, "laplace", None)
    file = tiny_training_file(tmp_path, select=SELECT)
    refused(fedpart("select", file, "--laplace"), 'pip install "fedpart[laplace]"')
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_run_judged_by_its_laplace_evidence_says_so(tmp_path):
    fixed = {"affine": None, "dropout": None, "mask": {"kept": 15}}
    file = tiny_training_file(tmp_path, hyperparameters=fixed, evidence="laplace", keep_best=True)
    result = succeeds("train", file, "--set", "method=none", "method_options.none.augment=true", "--out", "r")
    assert result.stdout.count("Laplace evidence") == 4  # three reports and the panel
    assert "L_ML" not in result.stdout
    assert run_figure(Run.load("r")).axes[1].get_ylabel() == "Laplace evidence [nats]"
