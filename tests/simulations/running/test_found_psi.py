"""Runs that start from what another has found, and what a run says of centres that have wandered off."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file
from tiny import tiny
from typer.testing import CliRunner

from fedpart import AffineAugmentation
from simulations.cli.main import app
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.results.terminal.panel import panel
from simulations.running.run import run_experiment

AUGERINO = {"affine": {"family": "augerino"}, "dropout": {"rate": 0.1}}
RATES = {"learning_rate": 0.01}


def state(folder: Path, kind: str) -> dict[str, bytes]:
    tensors = load_file(folder / "state.safetensors")
    return {name: t.numpy().tobytes() for name, t in tensors.items() if name.startswith(f"{kind}/")}


@pytest.mark.parametrize("execution", ["loop", "fused"])
def test_partitioned_training_under_the_psi_that_augerino_has_found(tmp_path: Path, execution: str) -> None:
    """docs/guides/settings.md: w is trained, psi stays to the bit."""
    found, frozen = tmp_path / "found", tmp_path / "frozen"
    run_experiment(tiny(method="augerino", hyperparameters=AUGERINO, server_psi=RATES), found)
    start = {"psi_from": str(found), "server_psi": {"learning_rate": 1e-30}}
    run_experiment(tiny(hyperparameters=AUGERINO, execution=execution, **start), frozen)
    assert state(frozen, "psi") == state(found, "psi")
    assert state(frozen, "w") != state(found, "w")
    first = read_metrics(found)[0]["psi"]["raw"]
    assert read_metrics(frozen)[0]["psi"]["raw"] == read_metrics(found)[-1]["psi"]["raw"] != first


def test_centres_that_have_left_the_identity_are_said_at_the_end(tmp_path: Path) -> None:
    """Minimum and maximum that step the same way by five times their half-width; ends of ``lila`` cannot."""
    run = tmp_path / "run"
    affine = {"family": "minmax", "initial": 0.002}
    told = tiny(hyperparameters={"affine": affine}, server_psi=RATES, rounds=2)
    summary = run_experiment(told, run)
    own = {name.removeprefix("affine."): value for name, value in summary["psi"].items()}
    assert summary["psi_remarks"] == [f"affine: {one}" for one in AffineAugmentation("minmax").remarks(own)]
    assert read_summary(run) == summary
    shown = Console(width=400, file=io.StringIO())
    shown.print(panel(summary, run))
    assert "note" in shown.file.getvalue()  # type: ignore[attr-defined]
    assert shown.file.getvalue().count("leave out images as they are") == 1  # type: ignore[attr-defined]
    quiet = run_experiment(tiny(server_psi=RATES, rounds=2), tmp_path / "quiet")
    assert "psi_remarks" not in quiet


@pytest.mark.parametrize(
    "settings",
    [
        # Augerino in the task's family, probabilities averaged, at the paper's rate (I.4)
        ["method=augerino", "method_options={augerino: {family: null}}", "average=probabilities"],
        # FedAvg with S dropout masks
        ["method=fedavg", "method_options={fedavg: {augment: true}}", "hyperparameters.affine=null"],
    ],
)
def test_the_settings_of_the_guide_start(tmp_path: Path, settings: list[str]) -> None:
    file = Path(__file__).parents[3] / "simulations" / "configs" / "table4" / "mnist_1250.yaml"
    few = ["data=digits", "rounds=1", "clients=4", "cohort=2", "training_points=32", "validation_points=8",
           "test_points=8", "samples=2", "precision=fp32", "server_psi.learning_rate=0.05"]  # fmt: skip
    command = [
        "run",
        str(file),
        "--engine",
        "local",
        "--out",
        str(tmp_path / "run"),
        "--set",
        *few,
        *settings,
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
