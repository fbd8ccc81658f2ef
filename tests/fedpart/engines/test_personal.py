"""personalise(): fine-tuning on one client's examples, from what a run has learned."""

from functools import partial

import pytest
import refusals
import torch
from problems import augmentation, chain_net, shard, shards
from torch import nn
from torch.nn import functional as F

from fedpart import (
    AdamSettings,
    AffineAugmentation,
    ClientError,
    Dataset,
    SGDSettings,
    Task,
    federate,
    fit,
    personalise,
)
from fedpart.partition.nodes import NodePartition


def plain_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))


def learned(task=None, **changes):
    task = task or Task(chain_net(), transforms=[augmentation()], samples=2)
    return federate(task, shards([6, 5, 7, 4]), **{"rounds": 2, "chunks": (0.5, 0.5), "cohort": 4, **changes})


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("method", ["partitioned", "fedavg"])
def test_it_is_a_plain_loop_in_torch(method):
    result = learned(Task(plain_net(), samples=1, precision="fp64"), method=method)
    mine, others = shard(20, 7).to(dtype=torch.float64), shard(9, 8).to(dtype=torch.float64)
    options = {"epochs": 4, "batch_size": 20, "sgd": SGDSettings(0.1, 0.9), "weight_decay": 0.01}
    found = personalise(result, mine, held_out=others, **options)
    module = result.module()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    losses = [F.cross_entropy(module(others.inputs), others.targets).item()]
    for _ in range(4):
        optimiser.zero_grad()
        F.cross_entropy(module(mine.inputs), mine.targets).backward()
        optimiser.step()
    losses.append(F.cross_entropy(module(others.inputs), others.targets).item())
    torch.testing.assert_close(found.module.state_dict(), module.state_dict(), rtol=0, atol=1e-13)
    assert [found.before["nll"], found.after["nll"]] == pytest.approx(losses, abs=1e-12)
    right = (module(others.inputs).argmax(1) == others.targets).sum().item()
    assert found.after["accuracy"] * len(others) == right
    assert (found.examples, found.held_out) == (20, 9)


def test_a_held_out_example_is_scored_and_never_trained_on():
    result, mine = learned(Task(chain_net(dropout=False), samples=1)), shard(9, 5)
    fit = partial(personalise, result, held_out=0.3, epochs=2, batch_size=4)
    one, trained = fit(mine), 0
    for place in range(len(mine)):
        targets = mine.targets.clone()
        targets[place] = (targets[place] + 1) % 3
        other = fit(Dataset(mine.inputs, targets))
        moved = not same(one.module, other.module)
        assert moved != (one.before["nll"] != other.before["nll"])
        trained += moved
    assert (trained, len(mine) - trained) == (one.examples, one.held_out) == (6, 3)


def test_bits_repeat_and_nothing_that_was_learned_changes():
    result, mine = learned(), shard(12, 5)
    w, psi = result.state.w.clone(), result.state.psi.clone()
    torch.manual_seed(1)
    first = personalise(result, mine, client=2, batch_size=4)
    torch.manual_seed(2)
    again, other = (personalise(result.state, mine, client=client, batch_size=4) for client in (2, 3))
    assert same(first.module, again.module) and not same(first.module, other.module)
    assert (first.before, first.after) == (again.before, again.after)
    assert torch.equal(result.state.w, w) and torch.equal(result.state.psi, psi)
    assert torch.equal(first.module[3].logit, result.module()[3].logit), "psi is fixed"
    assert not first.module.training
    assert not torch.equal(first.module[-1].weight, result.module()[-1].weight)


@pytest.mark.parametrize("name", ["affine.range", "3.logit"])
def test_it_trains_under_the_learned_psi(name):
    result, mine = learned(), shard(12, 5)
    before = personalise(result, mine)
    result.state.psi_tensors()[name].add_(0.5)
    after = personalise(result, mine)
    assert not torch.equal(before.module[-1].weight, after.module[-1].weight)
    assert (before.before == after.before) == (name == "3.logit"), "dropout is off where it is scored"


@pytest.mark.parametrize(
    "layers, moved",
    [(["7.*"], {"7.weight", "7.bias"}), (["0.weight", "*.bias"], {"0.weight", "0.bias", "5.bias", "7.bias"})],
)
def test_only_the_named_layers_move(layers, moved):
    result = learned(Task(chain_net(dropout=False).insert(3, nn.Identity()), samples=1))
    before = result.module().state_dict()
    after = personalise(result, shard(8, 5), layers=layers).module.state_dict()
    assert {name for name, value in after.items() if not torch.equal(value, before[name])} == moved


def test_frozen_weights_stay_also_of_dense_subnetworks_and_networks_trained_in_one_place():
    net = plain_net()
    net[1].requires_grad_(False)
    result = learned(Task(net, samples=1))
    found = personalise(result, shard(8, 5), weight_decay=0.1)
    assert torch.equal(found.module[1].weight, net[1].weight)
    assert not torch.equal(found.module[4].weight, result.module()[4].weight)
    narrow = learned(Task(chain_net(), samples=1), scheme="node", defaults="zeros")
    assert isinstance(narrow.state.partition, NodePartition)
    single = fit(Task(chain_net(), samples=1), shard(40), iterations=3, chunks=(0.5, 0.5))
    for result in (narrow, single):
        found = personalise(result, shard(30, 5), epochs=20, held_out=shard(30, 5))
        assert found.after["nll"] < found.before["nll"], "scored on what it is trained on"


def test_other_samples_score_and_do_not_train_and_regression_has_no_accuracy():
    result, mine = learned(), shard(8, 5)
    found = [personalise(result, mine, samples=samples) for samples in (1, 2, 9)]
    assert same(found[0].module, found[1].module) and same(found[0].module, found[2].module)
    assert len({one.before["nll"] for one in found}) == 3
    assert found[1].before == personalise(result, mine).before
    mine = shard(12, 5)
    targets = mine.inputs.mean((1, 2, 3)).unsqueeze(1).repeat(1, 3)
    data = [(mine.inputs, targets)] * 2
    task = Task(plain_net(), transforms=[AffineAugmentation(initial=0.1)], likelihood="gaussian", samples=2)
    result = federate(task, data, rounds=1, chunks=(0.5, 0.5))
    assert personalise(result, data[0]).after.keys() == {"nll"}


def test_what_cannot_be_personalised():
    result, mine = learned(Task(chain_net(), samples=1)), shard(8, 5)
    frozen = chain_net()
    frozen[0].requires_grad_(False)
    with_frozen = learned(Task(frozen, samples=1))
    no_layer = r"No trained weight of the network matches the layers '0\.\*'"
    fit = partial(personalise, result, mine)
    other = partial(personalise, result, client=3)
    few = "Client 3 has too few examples"
    failed, outside = "Client 3 failed: RuntimeError: .*shape", "data of client 3 do not fit the network"
    steep = r"loss of client 3 is .* lower the learning rate"
    no_result = r"what federate\(\) or fit\(\) returns, .* got a Sequential;"
    images, labels = Dataset(torch.rand(8, 1, 5, 7), mine.targets), Dataset(mine.inputs, mine.targets + 9)
    far = {"sgd": SGDSettings(1e30), "weight_decay": 1e10, "epochs": 9}  # weights overflow
    refusals.check_keywords(
        fit,
        [
            ({"held_out": 0.0}, "lies between 0 and 1, for instance 0.25, got 0.0"),
            ({"held_out": 1}, "lies between 0 and 1"),
            ({"held_out": shard(0)}, "8 examples to train on and 0 to be scored on"),
            ({"epochs": 0}, "epochs is a whole number, at least 1, got 0"),
            ({"batch_size": 0}, "batch_size is a whole number, at least 1"),
            ({"samples": 0}, "samples is a whole number, at least 1"),
            ({"client": -1}, "client is a whole number, at least 0, got -1"),
            ({"weight_decay": -1.0}, r"weight_decay is a number, at least 0, got -1\.0"),
            ({"sgd": AdamSettings()}, r"sgd are SGDSettings\(learning_rate, momentum\), got AdamSettings"),
            ({"layers": ["head.*"]}, "matches the layers 'head"),
            ({"layers": []}, "No layers are named"),
        ],
    )
    rows = [
        ("a frozen layer", partial(personalise, with_frozen, mine, layers=["0.*"]), ValueError, no_layer),
        ("one example", partial(other, shard(1)), ValueError, few),
        ("images of another size", partial(other, images), ClientError, failed),
        ("labels of no class", partial(other, labels), ClientError, outside),
        ("a steep loss", partial(other, mine, **far), ClientError, steep),
        ("a network", partial(personalise, result.module(), mine), ValueError, no_result),
    ]
    refusals.check(rows)
