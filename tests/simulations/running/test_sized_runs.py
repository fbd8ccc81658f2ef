"""Runs with networks of different sizes: what their files, their panel and the page tell."""

import io

import pytest
from fake_runs import small_config, write_run
from rich.console import Console
from sizes import TWO
from tiny import tiny

from simulations.folders.run_directory import read_metrics
from simulations.results.curves import Run
from simulations.results.pictures.comparison_figures import by_size, sizes_figure
from simulations.results.report.page import write_report
from simulations.results.report.sections import caps_section, sizes_section
from simulations.results.scores import byte_text
from simulations.results.terminal.panel import panel
from simulations.running.run import run_experiment


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("sizes") / "run"
    config = tiny(architectures=TWO, evaluation="clients", evaluate_every=1, model="digits_cnn")
    return run_experiment(config, out), out


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
    console = Console(file=io.StringIO(), width=160)
    console.print(panel(summary, out))
    shown = console.file.getvalue()
    assert "width 0.5: " in shown and "13,818 parameters, 3 clients" in shown and "their ensemble: " in shown
    runs = {"partitioned": [Run.load(out)]}
    section = sizes_section(runs)
    assert [chart.title for chart in section.charts] == [
        "Test accuracy [%]",
        "Sent by a client [MB]",
        "Received by a client [MB]",
    ]
    assert "width 1.0: 54,314 parameters; width 0.5: 13,818 parameters" in section.text
    assert set(by_size(runs["partitioned"])) == {"width 1.0", "width 0.5"}
    bars = sizes_figure(runs, "accuracy").axes[0].patches
    rows = summary["by_architecture"]
    assert [bar.get_height() for bar in bars] == pytest.approx([100 * row["accuracy"] for row in rows])
    write_run(tmp_path / "plain", small_config(), [0.5] * 12)
    assert sizes_section({"fedavg": [Run.load(tmp_path / "plain")]}) is None


def test_what_clients_of_each_cap_sent_and_received_is_told(tmp_path):
    config = tiny(caps={1: 0.5, 3: 0.5}, evaluation="clients", evaluate_every=1, cohort=6)
    summary = run_experiment(config, tmp_path / "run")
    small, large = summary["by_cap"]
    assert [small["cap"], large["cap"], small["clients"], large["clients"]] == [1, 3, 3, 3]
    assert small["upload_bytes"] + large["upload_bytes"] == summary["upload_bytes"]
    assert small["download_bytes"] + large["download_bytes"] == summary["download_bytes"]
    assert min(small["upload_bytes"], large["upload_bytes"]) > 0
    page = write_report(tmp_path / "run").read_text()
    each = byte_text(small["upload_bytes"] / 3)
    assert f"cap 1: 3 clients, each sent {each} and received" in page
    assert caps_section({"partitioned": [Run.load(tmp_path / "run")]}) is not None and "by cap " in page
