"""L_ML per example on the cohort: what subnetwork k-1 makes of clients of chunk k."""

import pytest
import torch
from adapted import frozen_body, frozen_norm, lstm_without_dropout
from problems import Recorder, after, augmentation, chain_net, norm_net, settings, shard, shards, smooth_net
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpart import (
    AdamSettings,
    ClipSettings,
    Dataset,
    LocalSettings,
    PrivacySettings,
    Protocol,
    Task,
    federate,
)
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
    for client, own in enumerate(shards(SIZES)):
        update = executor.run(values, client, own, protocol.plan(client, 3))
        assert update_scalars(update).keys() == {"examples", "loss"}


SIZES_LEAK = [3, 9, 6, 11, 2, 7, 5, 10, 8]
ROUNDS = 3
FIXED = {"chunks": (0.4, 0.3, 0.3), "server_psi": AdamSettings(1e-30)}


def train(network, data, momentum=0.0, weight_decay=0.0, **changes):
    """Final federation, psi frozen by a server that does not step it, so that its gradient is still seen."""
    task = Task(network, transforms=[augmentation()], samples=2)
    local = LocalSettings(learning_rate=0.3, batch_size=4, momentum=momentum, weight_decay=weight_decay)
    chosen = settings(len(data), cohort=7, local=local, **FIXED, **changes)
    return after(ROUNDS, Recorder(Protocol(task, chosen)), data)[0]


@pytest.mark.parametrize(
    ("network", "changes"),
    [
        (chain_net, {"scheme": "random"}),
        pytest.param(chain_net, {"scheme": "node"}, marks=pytest.mark.slow),
        (norm_net, {"scheme": "random"}),
        pytest.param(norm_net, {"momentum": 0.9, "weight_decay": 0.1}, marks=pytest.mark.slow),
        (frozen_body, {}),
        pytest.param(frozen_norm, {"momentum": 0.9, "weight_decay": 0.1}, marks=pytest.mark.slow),
        pytest.param(lstm_without_dropout, {}, marks=pytest.mark.slow),
    ],
    ids=["random", "node", "norms", "momentum and weight decay", "frozen body", "frozen BatchNorm", "LSTM"],
)
@pytest.mark.parametrize("defaults", ["initial", "zeros"])
def test_chunk_k_reaches_no_earlier_partition(network, changes, defaults):
    data = shards(SIZES_LEAK)
    whole = train(network(), data, defaults=defaults, **changes)
    for k in (1, 2, 3):
        mine = [client for client in range(len(data)) if whole.protocol.chunk(client) == k]
        replaced = [shard(len(s), 77 + i) if i in mine else s for i, s in enumerate(data)]
        other = train(network(), replaced, defaults=defaults, **changes)
        for j in (1, 2, 3):
            w_j = whole.protocol.partition.slice(j)
            assert torch.equal(whole.w[w_j], other.w[w_j]) == (j < k), f"chunk {k}, w_{j}"
        assert torch.equal(whole.psi, other.psi), "psi is frozen here"
        gradients = [(a["psi"], b["psi"]) for a, b in zip(whole.totals, other.totals, strict=True)]
        assert any(a is not None and not torch.equal(a, b) for a, b in gradients), "the psi gradient changes"


def test_even_a_failing_chunk_k_client_changes_no_earlier_partition():
    data, runs = shards(SIZES_LEAK), []
    for broken in (False, True):
        chosen = settings(len(data), on_client_error="skip", **FIXED)
        federation = Recorder(Protocol(Task(chain_net()), chosen))
        last = next(client for client in range(len(data)) if federation.protocol.chunk(client) == 3)
        mine = list(data)
        if broken:
            mine[last] = Dataset(data[last].inputs, data[last].targets + 10)
        _, reports = after(2, federation, mine)
        assert [s["client"] for r in reports for s in r.skipped] == ([last] * 2 if broken else [])
        runs.append(federation.w[: federation.protocol.partition.bounds[2]].clone())
    assert torch.equal(*runs)
