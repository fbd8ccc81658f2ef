"""L_ML per example on the cohort: what subnetwork k-1 makes of clients of chunk k."""

import pytest
import torch
from problems import augmentation, chain_net, settings, shards, smooth_net
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpart import ClipSettings, Dataset, LocalSettings, PrivacySettings, Protocol, Task, federate
from fedpart.engines import LocalEngine
from fedpart.engines.executor import Executor
from fedpart.federated.federation import Federation
from fedpart.federated.wire import update_scalars
from fedpart.task.gradients import Job
from fedpart.updates.update import Round

SIZES, CHUNKS = (5, 9, 4, 7, 12, 3, 8, 6), (0.5, 0.3, 0.2)


def tensors(module, flat):
    """Named weights of ``module`` from one vector."""
    named = dict(module.named_parameters())
    parts = flat.split([p.numel() for p in named.values()])
    return {name: part.view_as(p) for (name, p), part in zip(named.items(), parts, strict=True)}


def flat_net():
    """The smooth network without what a vector of weights does not hold."""
    return nn.Sequential(*(layer for layer in smooth_net() if not isinstance(layer, nn.LayerNorm)))


@pytest.mark.parametrize("execution", ["loop", "fused", "vectorised"])
def test_it_is_the_mean_log_likelihood_of_chunk_k_by_subnetwork_k_minus_1(execution):
    task = Task(flat_net(), samples=1, precision="fp64")
    data = [Dataset(shard.inputs.double(), shard.targets) for shard in shards(SIZES)]
    local = LocalSettings(learning_rate=0.5, batch_size=64)
    federation = Federation(Protocol(task, settings(len(data), chunks=CHUNKS, cohort=5, local=local)))
    protocol, partition = federation.protocol, federation.partition
    engine = LocalEngine(federation, data, execution=execution)
    weights = nn.Sequential(*(layer for i, layer in enumerate(task.module) if i != 3))  # without psi
    default = nn.utils.parameters_to_vector(weights.parameters()).detach()
    owner = partition.assignment
    for _ in range(4):
        w, gain = partition.to_own_order(federation.w), federation.psi.exp()
        total = count = 0
        for client in protocol.cohort(federation.round + 1):
            k = protocol.chunk(client)
            if k > 1:
                named = tensors(weights, torch.where(owner < k, w, default))
                first = {name: value for name, value in named.items() if name[0] != "3"}
                hidden = functional_call(weights[:3], first, (data[client].inputs,))
                logits = F.linear(gain * hidden, named["3.weight"], named["3.bias"])
                total += F.cross_entropy(logits, data[client].targets, reduction="sum").item()
                count += len(data[client])
        report = engine.run_round()
        assert count and report.lml == pytest.approx(-total / count, rel=1e-10)


def test_a_cohort_of_chunk_1_alone_has_none():
    task = Task(chain_net(), transforms=[augmentation()], samples=1)
    result = federate(task, shards(SIZES), chunks=CHUNKS, cohort=1, rounds=8)
    protocol = result.state.protocol
    for report in result.metrics:
        assert (report.lml is None) == (protocol.chunk(report.cohort[0]) == 1)
    assert {report.lml is None for report in result.metrics} == {True, False}


@pytest.mark.parametrize("method", ["fedavg", "augerino", "fedex"])
def test_methods_that_score_no_unseen_examples_have_none(method):
    task = Task(chain_net(), transforms=[augmentation()], samples=1)
    result = federate(task, shards(SIZES), method=method, rounds=2)
    assert [report.lml for report in result.metrics] == [None, None]


def test_a_psi_gradient_on_seen_examples_is_not_out_of_sample():
    protocol = Protocol(Task(chain_net()), settings(len(SIZES), chunks=CHUNKS))
    of_chunk_2 = next(client for client in range(len(SIZES)) if protocol.chunk(client) == 2)
    assert protocol.unseen(of_chunk_2, [Job(2, 2), Job(1, psi=True)]) == Job(1, psi=True)
    for jobs in ([Job(2, psi=True)], [Job(1, 1, psi=True)], [Job(3, 3), Job(2, 2)], []):
        assert protocol.unseen(of_chunk_2, jobs) is None


def test_with_privacy_it_does_not_leave_the_client():
    options = {"privacy": PrivacySettings(0.1, randomness="seed"), "clip": ClipSettings(1.0, psi=1.0)}
    options |= {"weighting": "uniform", "chunks": CHUNKS, "cohort": 7}
    result = federate(Task(chain_net()), shards(SIZES), rounds=2, **options)
    assert [report.lml for report in result.metrics] == [None, None]
    protocol = result.state.protocol
    executor, values = Executor(protocol), Round(3, result.state.w, result.state.psi)
    for client, shard in enumerate(shards(SIZES)):
        update = executor.run(values, client, shard, protocol.plan(client, 3))
        assert update_scalars(update).keys() == {"examples", "loss"}
