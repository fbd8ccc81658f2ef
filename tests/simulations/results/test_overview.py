"""Several configurations in one table, and the paper's numbers beside ours."""

import csv
import io
import json
import math

import pytest
from fake_runs import small_config, write_run
from rich.console import Console
from typer.testing import CliRunner

from simulations.cli.main import app
from simulations.config.federated import Published
from simulations.config.load import ConfigError, ExperimentConfig
from simulations.errors import RunError
from simulations.results.scores import Estimate
from simulations.sweeps.cell_runner import CellRunner, SweepIncomplete
from simulations.sweeps.compare import run_comparisons

METHODS = ("fedavg", "partitioned")
SIZES = {"mnist_1250": small_config(published="mnist-1.25k"), "own": small_config(training_points=200)}


def run(config, out, **_):
    return write_run(out, config, [0.90 + 0.02 * config.seed] * config.rounds)


def compare(out, configs, runner=run, seeds=2):
    stream = io.StringIO()
    try:
        shown = CellRunner(run=runner, console=Console(file=stream, width=80))
        return run_comparisons(configs, METHODS, seeds, out, shown)
    finally:
        compare.printed = stream.getvalue()


def test_the_table_4_of_the_paper():
    cell = Published.of("rotcifar10-45k")
    assert cell.rounds == 5000 and cell.accuracy["partitioned"] == {
        "mean": pytest.approx(0.606),
        "error": 0.002,
    }
    assert Published.of("mnist-1.25k").accuracy["augerino"] == {"mean": pytest.approx(0.942), "error": 0.005}
    with pytest.raises(ConfigError, match=r"published: .* no cell 'mnist-1k'; its cells are mnist-1.25k, "):
        ExperimentConfig.from_dict({"published": "mnist-1k"})


def test_naming_the_paper_changes_no_number():
    plain, named = small_config(), small_config(published="mnist-5k")
    assert plain.hash() == named.hash() and plain.identity() == named.identity()


def test_a_difference_in_standard_errors():
    assert Estimate(0.95, 0.003).difference(Estimate(0.97, 0.004)) == pytest.approx(-4.0)
    assert Estimate(0.95, None).difference(Estimate(0.97, 0.004)) is None  # one seed
    assert Estimate(0.95, 0.0).difference(Estimate(0.97, 0.0)) is None


def test_the_papers_numbers_stand_beside_ours(tmp_path):
    comparison = compare(tmp_path, {"": SIZES["mnist_1250"]})[""]
    # 0.90 and 0.92: mean 0.91, standard error 0.01; the paper has 95.4 +- 0.1
    difference = (0.91 - 0.954) / math.hypot(0.01, 0.001)
    assert comparison.difference(comparison.rows[0]) == pytest.approx(difference)
    assert (
        f"| fedavg | 91.00 ± 1.00 | 95.4 ± 0.1 | {difference:+.1f} | 91.00 ± 1.00 |"
        in (tmp_path / "comparison.md").read_text()
    )
    assert "95.4 ± 0.1" in compare.printed and max(map(len, compare.printed.splitlines()[2:-1])) <= 80
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert found["published"]["accuracy"]["fedavg"]["mean"] == pytest.approx(0.954)
    with (tmp_path / "comparison.csv").open() as file:
        assert float(next(csv.DictReader(file))["paper"]) == pytest.approx(0.954)


def test_one_seed_has_no_difference(tmp_path):
    comparison = compare(tmp_path, SIZES, seeds=1)["mnist_1250"]
    assert comparison.difference(comparison.rows[0]) is None
    assert "| 90.00 | 95.4 ± 0.1 | — |" in (tmp_path / "mnist_1250" / "comparison.md").read_text()


def test_several_configurations_end_in_one_table(tmp_path):
    calls = []

    def watched(config, out, **options):
        calls.append((out.relative_to(tmp_path).as_posix(), options["resume"]))
        return run(config, out, **options)

    compare(tmp_path, SIZES, watched)
    assert [folder for folder, _ in calls] == [
        f"{name}/{method}/seed{seed}" for seed in (0, 1) for name in SIZES for method in METHODS
    ]
    page = (tmp_path / "comparison.md").read_text()
    assert "| mnist_1250 | partitioned | 91.00 ± 1.00 | 97.0 ± 0.1 |" in page
    assert "| own | partitioned | 91.00 ± 1.00 | — | — |" in page
    assert "[own](own/comparison.md)" in page and (tmp_path / "own" / "accuracy_rounds.png").is_file()
    for text in (page, " ".join(compare.printed.split())):
        assert "validation: mean of a run's last ten evaluations, at most half of them" in text
    assert "mnist_1250" in compare.printed and max(map(len, compare.printed.splitlines()[2:-2])) <= 80
    with (tmp_path / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["experiment"], row["method"]) for row in rows] == [(n, m) for n in SIZES for m in METHODS]
    calls.clear()
    compare(tmp_path, SIZES, watched)
    assert calls == []  # all were finished


def test_one_comparison_and_several_do_not_share_a_folder(tmp_path):
    def refuse(*_, **__):
        raise AssertionError

    one = {"": SIZES["own"]}
    compare(tmp_path / "one", one, seeds=1)
    with pytest.raises(
        ConfigError, match=r"one is the folder of a comparison with one .* move what it holds"
    ):
        compare(tmp_path / "one", SIZES, refuse, seeds=1)
    compare(tmp_path / "two", SIZES, seeds=1)
    with pytest.raises(ConfigError, match=r"several configurations; .* --out .*two/(own|mnist_1250)"):
        compare(tmp_path / "two", one, refuse, seeds=1)
    compare(tmp_path / "two" / "own", one, refuse, seeds=1)  # nothing is run again
    inside = tmp_path / "one" / "own"
    inside.mkdir()
    for entry in [path for path in inside.parent.iterdir() if path != inside]:
        entry.rename(inside / entry.name)
    compare(tmp_path / "one", {"own": SIZES["own"]}, refuse, seeds=1)


def test_what_failed_is_named_with_its_configuration(tmp_path):
    def failing(config, out, **options):
        if config.published and config.method == "fedavg":
            raise RunError("No.")
        return run(config, out, **options)

    with pytest.raises(SweepIncomplete, match="2 of 8 runs failed") as caught:
        compare(tmp_path, SIZES, failing)
    assert "mnist_1250: fedavg seed 0, fedavg seed 1: No." in str(caught.value)
    assert "  - fedavg seed 0, fedavg seed 1: No." in (tmp_path / "comparison.md").read_text()


@pytest.mark.slow
def test_the_command_takes_several_configurations_and_processes(tmp_path):
    for name, points in (("small", 40), ("large", 60)):
        (tmp_path / f"{name}.yaml").write_text(
            f"{{clients: 4, cohort: 2, rounds: 1, training_points: {points}, validation_points: 20,"
            " test_points: 20, samples: 1, chunks: [.5, .5]}"
        )
    files = [str(tmp_path / "small.yaml"), str(tmp_path / "large.yaml")]
    options = ["--methods", "fedavg", "--seeds", "1", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["compare", *files, "--jobs", "2", *options])
    assert done.exit_code == 0, done.output
    assert "2 runs to do, 2 at a time." in done.output and "Finished 2 of 2" in done.output
    assert (tmp_path / "out" / "large" / "fedavg" / "seed0" / "summary.json").is_file()
    twice = CliRunner().invoke(app, ["compare", files[0], files[0], *options])
    assert twice.exit_code == 2 and "Two configurations are called small" in twice.output
