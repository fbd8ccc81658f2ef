"""No bit of chunk k's data may reach w_j for j < k (psi frozen): the invariant that everything rests on."""

import pytest
import torch
from adapted import frozen_body, frozen_norm, lstm_without_dropout
from problems import Recorder, after, augmentation, chain_net, norm_net, settings, shard, shards

from fedpart import AdamSettings, Dataset, LocalSettings, Protocol, Task

SIZES = [3, 9, 6, 11, 2, 7, 5, 10, 8]
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
    data = shards(SIZES)
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
    data, runs = shards(SIZES), []
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
