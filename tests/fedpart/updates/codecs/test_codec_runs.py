"""Runs whose uploads are encoded: the same bits on every engine and after a stop, and what travels."""

import pytest
import torch
from flower_experiment import CLIENTS, app, assert_equal_runs, build, local
from inprocess_grid import InProcessGrid
from parity import SIZES, assert_parity
from problems import augmentation, chain_net, nothing, settings, shards, update_of

from fedpart import ClipSettings, Federation, PrivacySettings, Protocol, Task, federate
from fedpart.engines import LocalEngine
from fedpart.federated.cohorts import expected_upload_ratio
from fedpart.flower.strategy import FedPart
from fedpart.updates.codecs import CODECS

CLIP = ClipSettings((0.03, 0.02, 0.01), psi=0.005)
EVEN = {"weighting": "uniform"}


def deployed(rounds, config):
    federation, reports = Federation(build(config).protocol), []
    grid = InProcessGrid(app, CLIENTS, config)
    FedPart(federation, on_round=reports.append).run(grid, rounds)
    return federation, reports


@pytest.mark.parametrize(
    "config",
    [
        *({"upload": name} for name in sorted(CODECS)),
        {"upload": "int4", "clip": CLIP, "trim": 0.2, **EVEN},
        {"upload": "int8", "clip": CLIP, "privacy": PrivacySettings(1.0, randomness="seed"), **EVEN},
        {"upload": "int8", "method": "fedex"},
    ],
    ids=lambda config: "-".join(map(str, [config["upload"], *list(config)[1:2]])),
)
def test_messages_and_memory_give_the_same_bits(config):
    expected = local(2, **config)
    sent = deployed(2, config)
    assert_equal_runs(sent, expected)
    for one, other in zip(sent[1], expected[1], strict=True):
        assert one.upload_bytes == pytest.approx(other.upload_bytes, abs=100 * len(one.cohort))
    plain, _ = local(2, **{**config, "upload": None})
    assert not torch.equal(plain.w, expected[0].w)


def test_worker_processes_give_the_same_bits():
    expected, experiment = local(2, upload="int4"), build({"upload": "int4"})
    federation, reports = Federation(experiment.protocol), []
    with LocalEngine(federation, experiment.shards, 2) as engine:
        engine.run(2, reports.append)
    assert_equal_runs((federation, reports), expected)


@pytest.mark.parametrize("name", ["int8", "int4", "topk"])
def test_clients_that_are_computed_together_are_rounded_alike(name):
    task = Task(chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
    assert_parity(task, 1e-6, upload=name)


def test_a_stopped_run_goes_on_as_if_it_had_not(tmp_path):
    def run(rounds, **more):
        task = Task(chain_net(), transforms=[augmentation()], samples=2)
        known = {"chunks": (0.5, 0.3, 0.2), "cohort": 3, "seed": 6, "upload": "int4"}
        return federate(task, shards(SIZES), rounds=rounds, **known, **more)

    whole = run(4)
    run(2, checkpoint=tmp_path / "run.pt")
    resumed = run(4, checkpoint=tmp_path / "run.pt", resume=True)
    assert torch.equal(resumed.state.w, whole.state.w)
    assert torch.equal(resumed.state.psi, whole.state.psi)


def test_bytes_are_those_of_the_codes_and_of_psi_as_it_is():
    chunks, task = (0.5, 0.3, 0.2), Task(chain_net(), samples=2)
    protocol = Protocol(task, settings(10, chunks=chunks, upload="int4"))
    reports = []
    LocalEngine(Federation(protocol), shards(range(3, 13))).run(1, reports.append)
    sizes = [-(-n // 2) + 4 * -(-n // 64) for n in protocol.partition.sizes]
    whole = 4 * protocol.partition.space.size
    psi = sum(4 * protocol.task.psi_space.size for client in range(10) if protocol.chunk(client) > 1)
    coded = sum(sum(sizes[protocol.chunk(client) - 1 :]) for client in range(10))
    assert reports[0].upload_bytes - coded - psi == 10 * 569
    assert expected_upload_ratio(protocol) == pytest.approx(coded / (10 * whole), abs=1e-12)


def test_rounding_is_a_function_of_seed_client_round_and_partition():
    def rounded(seed, client, round):
        """What becomes of the same numbers in two partitions."""
        known = {"chunks": (0.5, 0.5), "upload": "int4", "seed": seed}
        protocol = Protocol(Task(chain_net()), settings(10, **known))
        deltas = {j: torch.linspace(-1, 1, 64).repeat(2) for j in (1, 2)}
        found = protocol.send(update_of(deltas), client, nothing(round))
        return [tuple(found.cells[j].tolist()) for j in (1, 2)]

    assert rounded(0, 1, 1) == rounded(0, 1, 1)
    others = [rounded(0, 1, 1), rounded(1, 1, 1), rounded(0, 2, 1), rounded(0, 1, 2)]
    assert len({part for parts in others for part in parts}) == 8
