"""Joining a Ray cluster that runs already: two nodes of one core each, in processes of their own."""

import socket

import pytest
import torch
from flower_experiment import CLIENTS, assert_equal_runs, build, load, local
from tiny import tiny

from fedpart import Federation
from fedpart.flower.strategy import FedPart
from simulations.errors import RunError
from simulations.ray.grid import RayGrid
from simulations.running.run import run_experiment

import ray  # isort: skip  (after the environment is set)
from ray.cluster_utils import Cluster  # isort: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address():
    torch.set_num_threads(1)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def test_actors_are_on_all_machines_and_give_the_same_bits(address):
    federation, reports = Federation(build({"node_timeout": 600.0}).protocol), []
    with RayGrid(load, CLIENTS, {}, workers=5, address=address) as grid:
        assert grid.workers == 2, "no more than the cluster has cores, or some would never start"
        assert len(ray.nodes()) == 2
        FedPart(federation, on_round=reports.append).run(grid, 3)
    assert not ray.is_initialized(), "it is left again"
    assert_equal_runs((federation, reports), local(3))


def test_the_command_is_the_same(address, tmp_path):
    here, there = tiny(rounds=2), tiny(rounds=2, engine="ray", ray_address=address)
    assert here.hash() == there.hash(), "where it runs decides no number"
    run_experiment(here, tmp_path / "here")
    summary = run_experiment(there, tmp_path / "there")
    states = [(tmp_path / folder / "state.safetensors").read_bytes() for folder in ("here", "there")]
    assert states[0] == states[1]
    assert (summary["engine"], summary["workers"]) == ("ray", 2)


@pytest.mark.parametrize("port", [None, "nonsense"])
def test_no_cluster_there(tmp_path, port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{port or server.getsockname()[1]}"  # free once it is closed
    with pytest.raises(RunError, match=f"no Ray cluster to join at '{free}' .*start one with `ray start"):
        run_experiment(tiny(engine="ray", ray_address=free), tmp_path)


def test_no_cluster_here(monkeypatch, tmp_path):
    def refuse(**options):
        raise ConnectionError(f"nothing answers at {options['address']}")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(RunError, match=r"no Ray cluster to join at 'auto' \(nothing answers at auto\)"):
        run_experiment(tiny(engine="ray", ray_address="auto"), tmp_path)
