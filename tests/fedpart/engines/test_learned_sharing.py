"""What clients' networks share, learned from gradients that a few cohorts upload."""

import pytest
import torch
from problems import CLASSES, SIZE, shard, shards
from sizes import TWO
from torch import nn
from torch.nn import functional as F

from fedpart import LocalSettings, Task, federate
from fedpart.engines.sharing import learned_clusters, searched_gradients
from fedpart.federated.cohorts import state_bytes
from fedpart.partition.sharing.bank import Bank

EXAMPLES = [3, 9, 6, 11, 2, 7, 5, 10, 8, 4]
START = {"kind": "bank", "clusters": [["*"]], "coupled": True}


def net(width=1.0):
    torch.manual_seed(0)
    units = round(8 * width)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(units, units), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, units), *hidden, nn.Linear(units, CLASSES))


@pytest.fixture(scope="module")
def state():
    task = Task(net(), samples=1, precision="fp64", sizes=net)
    common = {"chunks": (0.6, 0.4), "cohort": 7, "seed": 3, "local": LocalSettings(0.3, batch_size=4)}
    return federate(task, shards(EXAMPLES), rounds=2, architectures=TWO, sharing=START, **common).state


def asked(state, first, rounds=5):
    """The clients that answer in the search, each as often as it does."""
    clients = [client for number in range(3, 3 + rounds) for client in state.cohort(number)]
    return [client for client in clients if not first or state.protocol.chunk(client) == 1]


@pytest.mark.parametrize("data", ["first", "all"])
def test_gradients_are_those_of_the_clients_that_were_asked_and_their_bytes_are_counted(state, data):
    clients, first = asked(state, data == "first"), data == "first"
    found, (up, down, count) = searched_gradients(state, shards(EXAMPLES), 5, data)
    expected, sent = {}, 0
    for client in clients:
        index = state.protocol.architectures[client]
        own = state.of_architecture(index)
        plain = own.module(own.tensors(1 if first else 2)).double()
        examples = shards(EXAMPLES)[client]
        outputs = plain(examples.inputs.double())
        F.cross_entropy(outputs, examples.targets, reduction="sum").backward()
        for name in own.task.module.recipes:
            gradient = plain.get_parameter(f"{name}.weight").grad
            expected[index, name] = expected.get((index, name), 0) + gradient
            sent += 8 * gradient.numel()
    assert found.keys() == expected.keys() and (up, count) == (sent, len(clients))
    assert down == sum(state_bytes(state.protocol, client) for client in clients)
    for layer, gradient in found.items():
        torch.testing.assert_close(gradient, expected[layer], rtol=0, atol=1e-12)


def test_data_of_later_chunks_decide_nothing_about_what_is_shared(state):
    mine = shards(EXAMPLES)
    changed = [shard(len(one), 99 + i) if state.protocol.chunk(i) > 1 else one for i, one in enumerate(mine)]
    for data, same in (("first", True), ("all", False)):
        one, other = (searched_gradients(state, those, 5, data)[0] for those in (mine, changed))
        assert all(torch.equal(one[layer], other[layer]) for layer in one) == same


def test_what_is_found_is_what_a_bank_takes(state):
    before = state.w.clone(), state.round
    alone = learned_clusters(state, shards(EXAMPLES), tau=1.0)
    one = learned_clusters(state, shards(EXAMPLES), tau=-1.01)
    assert len(alone.groups) == 4 > len(one.groups) and alone.upload_bytes == one.upload_bytes > 0
    for clusters in (alone.groups, one.groups):
        assert len(Bank(clusters=clusters).compose([net(1.0), net(0.5)])) == 2
    assert torch.equal(before[0], state.w) and before[1] == state.round
