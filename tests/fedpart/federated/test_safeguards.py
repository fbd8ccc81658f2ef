"""Clipping, claims, and rounds that survive clients that fail: what engines have in common."""

import math
from functools import partial

import pytest
import refusals
import torch
from flower_experiment import CLIENTS, app, build, deployed, local
from inprocess_grid import InProcessGrid
from problems import Recorder, after, chain_net, settings, shards, update_of
from tiny import tiny

from fedpart import ClientError, ClipSettings, Federation, Protocol, Task, federate
from fedpart.engines.executor import Executor
from fedpart.federated.cohorts import sum_updates
from fedpart.updates.update import PSI, Bound, clip
from simulations.building.experiment import build as build_from

CLIP = ClipSettings((0.03, 0.02, 0.01), psi=0.005)


def test_clients_clip_before_they_send_and_that_keeps_directions_and_short_updates_bits():
    experiment = build({"clip": CLIP})
    start, protocol = Federation(experiment.protocol).start(1), experiment.protocol
    for client in range(CLIENTS):
        jobs = protocol.plan(client, 1)
        update = Executor(protocol).run(start, client, experiment.shards[client], jobs)
        for j, delta in update.cells.items():
            assert delta.norm() <= (0.03, 0.02, 0.01)[j - 1] * (1 + 1e-6)
        assert update.psi is None or update.psi.norm() <= 0.005 * (1 + 1e-6)
    update = update_of({1: torch.tensor([3.0, 4.0]), 2: torch.tensor([0.1, 0.2])}, torch.tensor([0.0, 2.0]))
    short = update.cells[2].clone()
    clip(update, [Bound(0.5), Bound(1.0), Bound(1.0)])
    torch.testing.assert_close(update.cells[1], torch.tensor([0.6, 0.8]))
    assert torch.equal(update.cells[2], short)
    torch.testing.assert_close(update.psi, torch.tensor([0.0, 0.5]))


def test_one_client_with_nan_leaves_the_sum_of_the_other_nine():
    protocol = Protocol(Task(chain_net(), samples=1), settings(10, on_client_error="skip"))
    data, broken = shards(range(3, 13)), 4
    data[broken].inputs[0, 0, 0, 0] = math.nan
    federation, reports = after(1, Recorder(protocol), data)
    run = partial(Executor(protocol).answer, Federation(protocol).start(1), data)
    total = sum_updates(run(c).weigh(float(len(data[c]))) for c in range(10) if c != broken)
    found = federation.totals[0]
    assert all(torch.equal(found["deltas"][j], total.cells[j]) for j in (1, 2, 3))
    assert torch.equal(found["psi"], total.psi)
    assert found["weights"] | {PSI: found["psi_weight"]} == total.weights
    assert [one["client"] for one in reports[0].skipped] == [broken] and reports[0].replies == 9


@pytest.mark.parametrize("replies", [2, 3])
def test_a_round_with_too_few_replies_does_not_step(replies):
    config = {"on_client_error": "skip", "min_replies": 3}
    there = build({}).protocol.cohort(1)[:replies]

    def few(reply):
        content = reply.content
        return reply if content["config"]["client"] in there or content["config"]["round"] > 1 else None

    federation, reports = deployed(2, config, tamper=few)
    first, second = reports
    assert first.stepped == (replies == 3) and first.replies == replies
    assert first.refused == {"no_answer": 5 - replies}
    fresh = Federation(federation.protocol)
    now = {name: torch.tensor(value) for name, value in first.psi.items()}
    unchanged = all(torch.equal(now[name], v.flatten()) for name, v in fresh.psi_tensors().items())
    assert unchanged == (not first.stepped)
    assert second.stepped and second.replies == 5  # those that were missing are asked again
    assert {one["client"] for one in first.skipped}.isdisjoint(there)


def test_the_timeout_of_a_round_reaches_grid_and_messages():
    config = {"round_timeout": 7.5}
    grid = InProcessGrid(app, CLIENTS, config)
    honest, timeouts = grid.send_and_receive, []

    def send(messages, *, timeout=None):
        timeouts.append(timeout)
        return honest(messages, timeout=timeout)

    grid.send_and_receive = send
    deployed(2, config, grid)
    trained = [message for message in grid.sent if message.metadata.message_type == "train"]
    assert set(timeouts) == {7.5}
    assert {message.metadata.ttl for message in trained} == {67.5}


def test_claims_beyond_the_cap_are_refused_and_a_configurations_is_its_largest_shard():
    config = {"max_examples": 9, "on_client_error": "skip"}
    (_, (report,)), (_, (expected,)) = deployed(1, config), local(1, **config)
    assert report.skipped == expected.skipped and report.refused == expected.refused
    claimed = {client: 6 + client % 5 for client in report.cohort}
    assert {skip["client"] for skip in report.skipped} == {c for c, n in claimed.items() if n > 9}
    fused = partial(federate, Task(chain_net(), samples=1), shards([3, 4, 4, 5]), rounds=1, execution="fused")
    says = "claims 10 examples where max_examples is 9"
    refusals.check(
        [
            ("over Flower", partial(deployed, 3, {"max_examples": 9}), ClientError, says),
            ("here", partial(local, 3, max_examples=9), ClientError, says),
            ("fused", partial(fused, max_examples=4), ClientError, "client 3 .* claims 5 examples where"),
        ]
    )
    experiment = build_from(tiny())
    largest = max(len(shard) for shard in experiment.shards)
    assert experiment.protocol.settings.max_examples == largest
