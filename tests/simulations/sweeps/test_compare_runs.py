"""Comparisons of real runs: the same clients and data for every method, and the command's exit status."""

from pathlib import Path

from fake_runs import small_config
from typer.testing import CliRunner

from simulations.building.experiment import build
from simulations.cli.main import app
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.sweeps.compare import plan


def test_methods_of_a_seed_meet_the_same_data_clients_and_cohorts():
    config = small_config(seed=1, training_points=200, clients=10, cohort=4)
    cells = plan(config, ["fedavg", "augerino", "partitioned"], 2, Path("x"))
    assert [(c.config.method, c.config.seed) for c in cells[:4]] == [
        ("fedavg", 1),
        ("augerino", 1),
        ("partitioned", 1),
        ("fedavg", 2),
    ]
    built = [build(cell.config) for cell in cells[:4]]
    cohorts = [[b.protocol.cohort(round) for round in range(1, 30)] for b in built]
    assert cohorts[0] == cohorts[1] == cohorts[2] != cohorts[3]
    for other in built[1:]:
        assert all(
            a.inputs.equal(b.inputs) and a.targets.equal(b.targets)
            for a, b in zip(built[0].shards, other.shards, strict=True)
        )


def test_the_command_compares_real_runs_and_its_status_tells_of_a_bad_one(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text(
        "{clients: 6, cohort: 2, rounds: 2, training_points: 60, validation_points: 30, test_points: 30,"
        " samples: 1, evaluate_every: 1, chunks: [.5, .5], method_options: {augerino: {initial: 1.0e+30}}}"
    )
    arguments = ["compare", str(config), "--seeds", "1", "--out", str(tmp_path / "out")]
    failed = CliRunner().invoke(app, [*arguments, "--methods", "augerino,fedavg,partitioned"])
    assert failed.exit_code == 1 and "1 of 3 runs failed" in failed.output
    lines = failed.output.splitlines()
    assert lines[1].startswith("Failed: augerino, seed 0: ")
    accuracy = read_metrics(tmp_path / "out" / "fedavg" / "seed0")[-1]["val_accuracy"]
    told = f"Finished 1 of 3: fedavg, seed 0: validation accuracy {accuracy:.1%} at the last evaluation, "
    assert lines[2].startswith(told)
    assert lines[3].startswith("Finished 2 of 3: partitioned, seed 0: ")
    good = CliRunner().invoke(app, [*arguments, "--methods", "fedavg,partitioned"])
    assert good.exit_code == 0 and "2 of 2 runs were finished before" in good.output
    for method in ("fedavg", "partitioned"):
        folder = tmp_path / "out" / method / "seed0"
        assert read_summary(folder)["method"] == method and len(read_metrics(folder)) == 2
    page = (tmp_path / "out" / "comparison.md").read_text()
    assert "| partitioned | " in page and "rotation" in page
