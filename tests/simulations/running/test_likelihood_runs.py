"""Runs with other likelihoods, ensembles, and networks of several sizes."""

import json

import pytest
import yaml
from command_line import fedpart, refused, shown
from fake_runs import small_config, write_run
from sizes import TWO
from tiny import tiny, tiny_training, tiny_training_file

from fedpart.nn.likelihoods import Classification
from simulations.config.load import ConfigError
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.results.curves import Run
from simulations.results.pictures.run_figures import anytime_figure, has_costs
from simulations.results.report.page import write_report
from simulations.results.report.sections import kinds_section
from simulations.results.scores import byte_text
from simulations.results.terminal.panel import panel
from simulations.running.run import run_experiment

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

OPTIONS = {"temperature": 1.5, "label_smoothing": 0.1}
MEASURED = {"test_f1", "test_calibration_error"}
MAKE = {"federated": lambda **of: tiny(rounds=1, **of), "centralised": lambda **of: tiny_training(**of)}
each = pytest.mark.parametrize("kind", MAKE)


@each
def test_options_are_learned_and_measures_are_in_the_summary(kind, tmp_path):
    config = MAKE[kind](likelihood_options=OPTIONS, measures=True)
    summary = run_experiment(config, tmp_path / "run")
    assert summary.keys() >= MEASURED and all(0 <= summary[name] <= 1 for name in MEASURED)
    assert summary["psi"].keys() >= {"likelihood.temperature", "likelihood.label_smoothing [%]"}
    assert summary["psi"]["likelihood.temperature"] != pytest.approx(OPTIONS["temperature"], rel=1e-6)
    said = " ".join(fedpart("export", tmp_path / "run", "--format", "safetensors").output.split())
    for name in ("temperature", "label_smoothing [%]"):
        assert f"{name} {summary['psi'][f'likelihood.{name}']:.4g}" in said, said
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["likelihood_options"] == OPTIONS and written["measures"] is True


def test_a_shipped_network_ends_in_as_many_outputs_as_the_likelihood_takes(tmp_path):
    config = tiny(rounds=1, likelihood="ordinal", likelihood_options={"classes": 10}, measures=True)
    summary = run_experiment(config, tmp_path / "run")
    assert 0 <= summary["test_accuracy"] <= 1 and summary["test_mae"] >= 0
    assert len([name for name in summary["psi"] if name.startswith("likelihood.cut")]) == 9
    assert not run_experiment(tiny(rounds=1), tmp_path / "plain").keys() & MEASURED


class NoMeasures(Classification):
    """Measures fail, as torchmetrics does where something does not fit."""

    def measures(self, outputs, targets):
        raise RuntimeError("expected\nsomething else")


@pytest.mark.quick(1)
@each
def test_measures_that_fail_lose_no_finished_run(kind, tmp_path):
    config = MAKE[kind](likelihood=f"{__name__}:NoMeasures", measures=True)
    summary = run_experiment(config, tmp_path / "run")
    assert "cannot be computed (expected something else); leave" in summary["test_measures_missing"]
    assert summary["test_accuracy"] is not None


class Positive(Classification):
    """Takes every class but 1, and says so before anything is computed."""

    def faults(self, targets, classes):
        yield targets == 1, "the class 1", "leave them out"


@each
def test_held_out_data_are_looked_at_before_there_is_a_folder(kind, tmp_path):
    with pytest.raises(ConfigError, match=r"of the (validation|training) data have the class 1; leave"):
        run_experiment(MAKE[kind](likelihood=f"{__name__}:Positive"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


MEMBERS = [{"model": "digits_cnn", "width": width} for width in (1.0, 0.5)]
KEYS = {"data": "digits", "model": "ensemble", "likelihood": "ensemble", "corrupted": True, "samples": 1}
KEYS |= {"model_options": {"kind": "slimmable", "members": MEMBERS}, "iterations": 6, "evaluate_every": 3}
KEYS["hyperparameters"] = {"affine": None, "dropout": {}, "mask": None}


@pytest.mark.slow
def test_a_partitioned_run_tells_of_its_members(tmp_path):
    done = fedpart("train", tiny_training_file(tmp_path, **KEYS), "--out", "run")
    assert done.exit_code == 0, done.output
    summary = read_summary(tmp_path / "run")
    found, mean = summary["ensemble"], summary["corrupted"]["mean"]
    assert [row["members"] for row in found["subsets"]] == [[0], [1], [0, 1]]
    assert found["accuracy"] == summary["test_accuracy"]
    assert found["nll"] == pytest.approx(summary["test_nll"])
    lines = read_metrics(tmp_path / "run")
    assert lines[-1]["train_loss"] > 1.5 * lines[-1]["val_nll"], "the sum over two members"
    assert lines[-1]["lml"] < 0
    for text in ("ensemble", "members", "diversity", "corrupted", f"{mean['accuracy']:.1%}"):
        assert text in done.output
    assert (tmp_path / "run" / "anytime.png").stat().st_size > 5_000
    assert has_costs(summary) and not has_costs({}) and not has_costs({"ensemble": {"accuracy": 1.0}})
    (axes,) = anytime_figure(summary).axes
    assert [line.get_label() for line in axes.lines] == ["best so far", "1 member", "2 members"]
    shown = sorted(x for line in axes.lines[1:] for x in line.get_xdata())
    assert shown == pytest.approx(sorted(row["multiply_adds"] / 1e6 for row in found["subsets"]))
    json.dumps(summary)


def test_what_does_not_fit_together_is_said(tmp_path):
    run = tiny_training_file(tmp_path, **KEYS, method="none", chunks=[1.0])
    refused(fedpart("train", run, "--set", "model_options.kind=deeep"), "did you mean 'deep'?")
    plain = fedpart("train", run, "--set", "likelihood=classification", "--out", "plain")
    refused(plain, "use likelihood='ensemble'", status=plain.exit_code)
    mimo = ["model_options.kind=mimo", "model_options.members=[{model: digits_cnn, times: 2}]"]
    partitioned = ["method=partitioned", "chunks=[0.5, 0.5]"]
    done = fedpart("train", run, *(part for one in (*mimo, *partitioned) for part in ("--set", one)))
    refused(done, "Mimo at the top level cannot be partitioned")
    with pytest.raises(ValueError, match="corrupted cannot be 3"):
        tiny_training(corrupted=3)
    tokens = tiny_training_file(tmp_path, corrupted=True)
    refused(fedpart("train", tokens, "--out", "tokens"), "Only images", "set corrupted: false")
    assert not (tmp_path / "tokens").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("sizes") / "run"
    config = tiny(architectures=TWO, evaluation="clients", evaluate_every=1, model="digits_cnn")
    return run_experiment(config, out), out


@pytest.mark.slow
def test_the_summary_tells_of_every_size(run):
    summary, out = run
    lines, (large, small) = read_metrics(out), summary["by_architecture"]
    assert [large["parameters"], small["parameters"]] == [54_314, 13_818]
    # 28x28x25 x 8, 14x14x25x8 x 16 and 784 x 64 + 64 x 10; the transform's 2 x 3 x 784 besides
    assert large["multiply_adds"] - (156_800 + 627_200 + 50_176 + 640) == 2 * 3 * 784
    assert large["clients"] == small["clients"] == 3
    headers = 569 * sum(len(line["cohort"]) for line in lines)
    assert large["upload_bytes"] + small["upload_bytes"] == summary["upload_bytes"]
    assert large["download_bytes"] + small["download_bytes"] == summary["download_bytes"]
    assert summary["upload_bytes"] > headers
    assert summary["test_accuracy"] == large["accuracy"] and 0 <= summary["ensemble"]["accuracy"] <= 1
    last = lines[-1]
    assert last["val_accuracy"] == last["val_accuracy_architectures"][0]
    assert len(last["client_nll_architectures"]) == len(last["val_nll_architectures"]) == 2


def test_the_panel_and_the_page_show_them(run, tmp_path):
    summary, out = run
    text = shown(panel(summary, out))
    assert "width 0.5: " in text and "13,818 parameters, 3 clients" in text and "their ensemble: " in text
    runs = {"partitioned": [Run.load(out)]}
    (table,) = kinds_section(runs).tables
    assert table.head[:3] == ["size", "method", "clients"] or "clients: 3" in table.alike
    rows = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    wanted = {
        f"width {width}": row for width, row in zip((1.0, 0.5), summary["by_architecture"], strict=True)
    }
    assert rows.keys() == wanted.keys()
    for name, row in wanted.items():
        assert rows[name]["parameters"] == f"{row['parameters']:,}"
        assert rows[name]["test accuracy [%]"] == f"{100 * row['accuracy']:.1f}"
        assert rows[name]["sent"] == byte_text(row["upload_bytes"] / row["clients"])
    write_run(tmp_path / "plain", small_config(), [0.5] * 12)
    assert kinds_section({"fedavg": [Run.load(tmp_path / "plain")]}) is None


@pytest.mark.slow
def test_what_clients_of_each_cap_sent_and_received_is_told(tmp_path):
    config = tiny(caps={1: 0.5, 3: 0.5}, evaluation="clients", evaluate_every=1, cohort=6)
    summary = run_experiment(config, tmp_path / "run")
    small, large = summary["by_cap"]
    assert [small["cap"], large["cap"], small["clients"], large["clients"]] == [1, 3, 3, 3]
    assert small["upload_bytes"] + large["upload_bytes"] == summary["upload_bytes"]
    assert small["download_bytes"] + large["download_bytes"] == summary["download_bytes"]
    assert min(small["upload_bytes"], large["upload_bytes"]) > 0
    page = write_report(tmp_path / "run").read_text()
    assert "Kinds of clients" in page and "By cap: means over seeds" in page
    assert byte_text(small["upload_bytes"] / 3) in page and byte_text(large["download_bytes"] / 3) in page
