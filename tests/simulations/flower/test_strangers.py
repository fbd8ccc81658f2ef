"""What a run does by itself where its clients are strangers."""

import pytest
from flwr.app import Context, RecordDict
from inprocess_grid import InProcessGrid
from rich.console import Console
from tiny import TINY, tiny, tiny_file

import simulations.running.server_app as served
from fedpart import ClipSettings
from simulations.config.load import load_config
from simulations.flower.client import app
from simulations.flower.config import among_strangers, deployed_run_config, read_run_config
from simulations.folders.run_directory import read_metrics, read_summary, saved_config
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
    expected = run_experiment(
        tiny(rounds=3, evaluate_every=1, **({"clip": "adaptive"} if deployed else {})), tmp_path / "local"
    )
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
    said.print(panel(summary, tmp_path))
    assert "1 times the usual norm" in said.export_text()
    assert "clipped" not in read_metrics_of_a_plain_run(tmp_path / "plain")


def read_metrics_of_a_plain_run(folder):
    run_experiment(tiny(rounds=1), folder)
    return read_metrics(folder)[0]
