"""Clients of other people: clipping, privacy that is only simulated, residuals that they keep."""

import re
from functools import partial
from types import SimpleNamespace

import pytest
import refusals
import torch
from command_line import fedpart, shown
from flwr.app import Context, RecordDict
from inprocess_grid import InProcessGrid
from rich.console import Console
from tiny import TINY, tiny, tiny_file

import simulations.running.server_app as served
from fedpart import ClipSettings, Federation
from fedpart.engines import LocalEngine
from fedpart.flower import FedPart, strategy
from fedpart.updates.stages import Kept
from simulations.building.experiment import build
from simulations.config.load import ConfigError, load_config
from simulations.deployment.up import run_deployed
from simulations.flower.client import app
from simulations.flower.config import among_strangers, deployed_run_config, read_run_config
from simulations.folders.run_directory import read_metrics, read_summary, saved_config
from simulations.results.report.folder import find, runs_table
from simulations.results.terminal.panel import panel
from simulations.results.terminal.progress import Progress
from simulations.running.run import run_experiment

ADAPTIVE = ClipSettings(multiple=4.0)


def test_clipping_is_on_where_the_configuration_says_nothing_of_it(tmp_path):
    plain = load_config(tiny_file(tmp_path), [])
    assert plain.clip is None and among_strangers(plain).clip == ADAPTIVE
    assert among_strangers(plain).settings().clip == ADAPTIVE
    for given, clip in (({"clip": None}, None), ({"clip": {"weights": 1.0}}, ClipSettings(1.0))):
        assert among_strangers(load_config(tiny_file(tmp_path, **given))).clip == clip
    assert among_strangers(load_config(tiny_file(tmp_path), ["clip=null"])).clip is None
    for method, clip in (("scaffold", None), ("partitioned+feddyn", None), ("fedavg+fednova+yogi", ADAPTIVE)):
        kept = among_strangers(load_config(tiny_file(tmp_path), [f"method={method}"]))
        assert kept.clip == clip and kept.settings().method == method
    sent = read_run_config(deployed_run_config(plain, tmp_path, False))
    assert sent.clip == ADAPTIVE and among_strangers(sent) == sent
    off = load_config(tiny_file(tmp_path), ["clip=null"])
    assert read_run_config(deployed_run_config(off, tmp_path, False)).clip is None


@pytest.mark.slow
@pytest.mark.parametrize("deployed", [True, False])
def test_a_serverapp_clips_over_a_superlink_and_not_in_a_simulation(tmp_path, monkeypatch, deployed):
    """Its clients, who were started with the same run config, need not know."""
    config = {"config": str(tiny_file(tmp_path, rounds=3, evaluate_every=1)), "overrides": ""}
    monkeypatch.setattr(served, "is_deployed", lambda grid: deployed)
    out = tmp_path / "out"
    grid = InProcessGrid(app, TINY["clients"], config)
    served.main(grid, Context(0, 0, {}, RecordDict(), {**config, "out": str(out)}))
    clip = {"clip": "adaptive"} if deployed else {}
    expected = run_experiment(tiny(rounds=3, evaluate_every=1, **clip), tmp_path / "local")
    assert (out / "state.safetensors").read_bytes() == (tmp_path / "local" / "state.safetensors").read_bytes()
    summary = read_summary(out)
    assert summary.get("clip") == expected.get("clip") and ("clip" in summary) == deployed
    assert saved_config(out).clip == (ADAPTIVE if deployed else None)


def test_a_run_names_its_clip_and_whom_it_has_shortened(tmp_path):
    said = Console(record=True, width=200, force_terminal=False)
    config = tiny(clip={"multiple": 1.0}, rounds=4)
    summary = run_experiment(config, tmp_path, progress=Progress(said))
    assert "updates clipped to 1 times what is usual" in said.export_text()
    lines = read_metrics(tmp_path)
    clip = summary["clip"]
    assert clip["multiple"] == 1.0 and len(clip["bounds"]["cells"]) == 3 and clip["bounds"]["psi"] > 0
    counts = [str(client) for line in lines for client in line["clipped"]]
    assert clip["clipped"] == {one: counts.count(one) for one in sorted(set(counts), key=int)} != {}
    assert "1 times the usual norm" in shown(panel(summary, tmp_path))
    run_experiment(tiny(rounds=1), tmp_path / "plain")
    assert "clipped" not in read_metrics(tmp_path / "plain")[0]


PRIVATE = {
    "rounds": 1,
    "weighting": "uniform",
    "on_client_error": "skip",
    "clip": {"weights": 1.0, "psi": 1.0},
}
SEEDED = {**PRIVATE, "privacy": {"noise_multiplier": 2.0, "randomness": "seed"}}
SYSTEM = {**PRIVATE, "privacy": {"noise_multiplier": 2.0}, "cohort": TINY["clients"]}  # so that all are drawn


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
    said = fedpart("up", str(file), "--out", str(out))
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
    text = f"epsilon {summary['epsilon']:.2f} at delta 1e-05" + ", simulated" * simulated
    assert text in shown(panel(summary, folder)) and ("simulated" in text) == simulated
    head, (row,) = runs_table(find(folder).runs)
    assert row[head.index("privacy")] == text


@pytest.mark.slow
def test_messages_to_processes_with_a_disk_give_the_bits_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    config = tiny(upload="topk", upload_options={"share": 0.02, "values": "fp16"}, error_feedback=True)
    experiment = build(config)
    sent, here = Federation(experiment.protocol), Federation(experiment.protocol)
    grid = InProcessGrid(app, config.clients, deployed_run_config(config, tmp_path / "out", False))
    FedPart(sent).run(grid, 4)
    LocalEngine(here, experiment.shards).run(4)
    assert torch.equal(sent.w, here.w)
    kept = {int(file.parent.name) for file in tmp_path.glob("fedpart/residuals/*/*/*.pt")}
    assert kept == set(here.stage(Kept).residuals.versions)
