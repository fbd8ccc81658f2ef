"""Deployed clients of a configuration keep what error feedback needs in Flower's home folder."""

import torch
from inprocess_grid import InProcessGrid
from tiny import tiny

from fedpart import Federation
from fedpart.engines import LocalEngine
from fedpart.flower.strategy import FedPart
from fedpart.updates.stages import Feedback
from simulations.building.experiment import build
from simulations.flower.client import app
from simulations.flower.config import deployed_run_config


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
    assert kept == set(here.stage(Feedback).residuals.versions)
