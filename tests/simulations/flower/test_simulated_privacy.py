"""Privacy whose noise is the seed's: refused where clients are real, called simulated elsewhere."""

import re
from functools import partial
from types import SimpleNamespace

import pytest
import refusals
from flwr.app import Context, RecordDict
from rich.console import Console
from tiny import tiny, tiny_file
from typer.testing import CliRunner

import simulations.running.server_app as served
from fedpart.flower import FedPart, strategy
from simulations.cli.main import app
from simulations.config.load import ConfigError
from simulations.deployment.up import run_deployed
from simulations.flower.config import deployed_run_config, read_run_config
from simulations.folders.run_directory import read_summary
from simulations.results.report.folder import find, runs_table
from simulations.results.terminal.panel import panel
from simulations.running.run import run_experiment

PRIVATE = {
    "rounds": 1,
    "weighting": "uniform",
    "on_client_error": "skip",
    "clip": {"weights": 1.0, "psi": 1.0},
    "checkpoint_every": 1,
}
SEEDED = {**PRIVATE, "privacy": {"noise_multiplier": 2.0, "randomness": "seed"}}
SYSTEM = {**PRIVATE, "privacy": {"noise_multiplier": 2.0}}


def test_real_clients_are_promised_no_privacy_that_they_could_undo(tmp_path, monkeypatch):
    config, file = tiny(**SEEDED), tiny_file(tmp_path, **SEEDED)
    out = tmp_path / "out"
    monkeypatch.setattr(served, "is_deployed", lambda grid: True)
    monkeypatch.setattr(strategy, "is_deployed", lambda grid: True)
    context = Context(0, 0, {}, RecordDict(), {"config": str(file), "overrides": "", "out": str(out)})
    protocol = SimpleNamespace(settings=config.settings())
    own = SimpleNamespace(run=FedPart.start, federation=SimpleNamespace(protocol=protocol))
    says = "privacy.randomness is seed, which clients know, .* set randomness: system"
    refusals.check(
        [
            ("fedpart up", partial(run_deployed, config, out, show=print), ConfigError, says),
            ("fedpart submit", partial(deployed_run_config, config, out, False), ConfigError, says),
            ("flwr run", partial(served.main, object(), context), ConfigError, says),
            ("a ServerApp", lambda: FedPart.start(own, object(), None, num_rounds=1), ValueError, says),
        ]
    )
    assert not out.exists()
    said = CliRunner().invoke(app, ["up", str(file), "--out", str(out)])
    assert said.exit_code != 0 and re.search("privacy.randomness is seed", said.output.replace("\n", " "))
    kept = read_run_config(deployed_run_config(tiny(**SYSTEM), out, False))
    assert kept.privacy == tiny(**SYSTEM).privacy


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "simulated"), [(SEEDED, True), (SYSTEM, False)])
def test_simulated_stands_beside_an_epsilon_that_protects_nobody(tmp_path, changes, simulated):
    folder = tmp_path / "run"
    summary = run_experiment(tiny(**changes), folder)
    assert summary["epsilon_simulated"] is simulated
    assert read_summary(folder)["epsilon_simulated"] is simulated
    said = Console(record=True, width=200, force_terminal=False)
    said.print(panel(summary, folder))
    text = f"epsilon {summary['epsilon']:.2f} at delta 1e-05" + ", simulated" * simulated
    assert text in said.export_text() and ("simulated" in text) == simulated
    head, (row,) = runs_table(find(folder))
    assert row[head.index("privacy")] == text
