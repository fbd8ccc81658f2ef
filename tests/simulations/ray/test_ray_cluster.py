"""Joining a Ray cluster that runs already: two nodes of one core each, in processes of their own."""

import socket
from functools import partial

import pytest
import refusals
import torch
from flower_experiment import CLIENTS, assert_equal_runs, build, load, local
from tiny import KEPT, tiny

from fedpart import ClientError, ClipSettings, Federation
from fedpart.flower.strategy import FedPart
from simulations.errors import RunError
from simulations.ray.actor import Remote
from simulations.ray.grid import RayGrid
from simulations.running.run import run_experiment

import ray  # isort: skip  (after the environment is set)
from ray.cluster_utils import Cluster  # isort: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address():
    torch.set_num_threads(1)
    head = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False}  # GPUs that are said to be there
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, num_gpus=2)
    yield cluster.address
    cluster.shutdown()


def run(grid, rounds=3, **config):
    federation, reports = Federation(build({"node_timeout": 600.0, **config}).protocol), []
    FedPart(federation, on_round=reports.append).run(grid, rounds)
    return federation, reports


@pytest.fixture
def relayed(monkeypatch):
    """What becomes of the rounds whose sum hosts are asked for."""
    rounds, relay = [], RayGrid.relay

    def noted(*given):
        rounds.append(relay(*given))
        return rounds[-1]

    monkeypatch.setattr(RayGrid, "relay", noted)
    return rounds


def test_actors_are_on_all_machines_and_give_the_same_bits(address, relayed, monkeypatch):
    with RayGrid(load, CLIENTS, {}, workers=5, address=address) as grid:
        assert grid.workers == 2, "no more than the cluster has cores, or some would never start"
        assert len(ray.nodes()) == 2
        federation, reports = run(grid)
        assert len(relayed) == 3 and all(relayed), "one sum crosses hosts, not the replies"
        monkeypatch.setattr(RayGrid, "relay", lambda *given: None)
        one_by_one = run(grid)[1]
    assert not ray.is_initialized(), "it is left again"
    assert_equal_runs((federation, reports), local(3))
    for report, other in zip(reports, one_by_one, strict=True):
        assert (report.upload_bytes, report.replies) == (other.upload_bytes, other.replies)


CLIP, INT8 = {"clip": ClipSettings(0.01, 0.01)}, {"upload": "int8"}


def test_clients_without_an_update_are_missed_on_their_host(address, relayed):
    failing = build({}).protocol.cohort(1)[-2]
    config = {"failing": failing, **INT8}
    with RayGrid(load, CLIENTS, config, address=address) as grid:
        result = run(grid, on_client_error="skip", **INT8)
        assert len(relayed) == 3 and all(relayed)
        with pytest.raises(ClientError, match=rf"^Client {failing} failed in round 1: KeyError: .*the disk"):
            run(grid, **INT8)
    assert_equal_runs(result, local(3, on_client_error="skip", **config))


def test_a_relay_that_breaks_is_made_good_by_the_replies(address, relayed, tmp_path):
    config = {"dying": build({}).protocol.cohort(2)[1], "marker": str(tmp_path / "died"), **CLIP}
    with RayGrid(load, CLIENTS, config, address=address) as grid:
        result = run(grid, **CLIP)
    assert relayed[0] and relayed[1] is None
    assert_equal_runs(result, local(3, **CLIP))


def test_a_process_that_answers_nothing_in_a_relay_is_replaced_once(address, relayed, monkeypatch, tmp_path):
    """Its messages do not wait behind the one that hangs, and all clients answer."""
    replaced, replace = [], Remote.replace
    monkeypatch.setattr(Remote, "replace", lambda actor: replaced.append(actor) or replace(actor))
    config = {"dying": build({}).protocol.cohort(2)[1], "marker": str(tmp_path / "deaf"), "deaf": True}
    with RayGrid(load, CLIENTS, config, address=address) as grid:
        result = run(grid, round_timeout=90.0)  # so long may a new actor take, where much else is done
    assert relayed[0] and relayed[1] is None and len(replaced) == 1
    assert_equal_runs(result, local(3))


def test_a_client_that_hangs_in_a_relay_is_missed_and_nobody_computed_again(address, relayed):
    first, second = (build({}).protocol.cohort(round) for round in (1, 2))
    hanging = next(client for client in reversed(second) if client not in first)
    missed = second[second.index(hanging) :]  # those after it on its host are too late
    with RayGrid(load, CLIENTS, {"hanging": hanging}, address=address) as grid:
        _, reports = run(grid, 2, round_timeout=60.0, on_client_error="skip")
    assert len(relayed) == 2 and all(relayed)
    assert not reports[0].skipped and [skip["client"] for skip in reports[1].skipped] == missed
    assert all("did not answer" in skip["reason"] for skip in reports[1].skipped)


def test_a_relay_of_clipped_and_coded_updates_has_the_bits_of_one_process(address, relayed):
    more = CLIP | INT8
    with RayGrid(load, CLIENTS, more, address=address) as grid:
        result = run(grid, **more)
    assert len(relayed) == 3 and all(relayed)
    assert_equal_runs(result, local(3, **more))


def test_a_defence_sees_every_update_on_gpus_that_are_no_multiple_of_the_actors(address, relayed):
    config = {"defence": "median", "weighting": "uniform"}
    with RayGrid(load, CLIENTS, config, address=address, gpu=True) as grid:
        assert_equal_runs(run(grid, 2, **config), local(2, **config))
        assert all(actor.begun() for actor in grid._actors) and len(grid._actors) == 2
    assert not relayed


def test_the_command_is_the_same_and_keeps_the_best_round(address, monkeypatch, tmp_path):
    here, there = tiny(**KEPT), tiny(**KEPT, engine="ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    run_experiment(here, tmp_path / "here")
    summary = run_experiment(there, tmp_path / "there")
    states = [(tmp_path / folder / "state.safetensors").read_bytes() for folder in ("here", "there")]
    assert states[0] == states[1]
    assert (summary["engine"], summary["workers"]) == ("ray", 2)


def test_no_cluster(monkeypatch, tmp_path):
    def joined(address):
        monkeypatch.setenv("RAY_ADDRESS", address)
        run_experiment(tiny(engine="ray"), tmp_path / address.replace(":", "-"))

    def refuse(**options):
        raise ConnectionError(f"nothing answers at {options['address']}")

    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{server.getsockname()[1]}"  # free once it is closed
    places, none = (free, "127.0.0.1:nonsense"), "no Ray cluster to join at"
    refusals.check(
        (place, partial(joined, place), RunError, f"{none} '{place}' .*start one with `ray start")
        for place in places
    )
    monkeypatch.setattr(ray, "init", refuse)
    says = rf"{none} 'auto' \(nothing answers at auto\)"
    refusals.check([("here", partial(joined, "auto"), RunError, says)])
