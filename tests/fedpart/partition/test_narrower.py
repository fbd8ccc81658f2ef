"""Subnetworks of node partitioning as networks of fewer units: what they compute is what the whole one does.

With a declared chain the same subnetworks are computed at full width.
"""

from functools import partial

import pytest
import torch
from problems import SIZE, assert_near, augmentation, chain_net, settings, shard, shards
from torch import nn

from fedpart import (
    AdamSettings,
    Batch,
    Federation,
    LocalSettings,
    NodePartition,
    ParameterSpace,
    Protocol,
    Task,
    fit,
)
from fedpart.engines import LocalEngine
from fedpart.nn.models import digits_cnn, mlp
from fedpart.randomness.noise import Noise, NoiseKey

U = (0.6, 0.3, 0.1)
NODE = {"scheme": "node", "defaults": "zeros"}
CHAIN = ("0", "4", "6")  # of chain_net without dropout


def node(module, u=U, **changes):
    options = {"defaults": "zeros", **changes}
    exclude = options.pop("exclude", ())
    return NodePartition(ParameterSpace(module, len(u), exclude=exclude), u, module, **options)


def shapes(partition, k):
    return {name: tuple(t.shape) for name, t in partition.materialise(partition.initial(), k).items()}


NETWORKS = {
    "mlp": lambda: mlp(3, (1, SIZE, SIZE), (20, 10), "gelu"),
    "sigmoid": lambda: nn.Sequential(  # an absent unit is not 0: nothing reads it
        nn.Flatten(), nn.Linear(SIZE**2, 10), nn.Sigmoid(), nn.Linear(10, 10), nn.Softplus(), nn.Linear(10, 3)
    ),
    "cnn": lambda: digits_cnn(3, (1, SIZE, SIZE)),
    "chain": chain_net,
}


@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_and_gradients_are_those_at_full_width(network):
    torch.manual_seed(0)
    task = Task(NETWORKS[network](), transforms=[augmentation()], samples=2, precision="fp64")
    space = task.parameter_space(3)
    partition = NodePartition(space, U, task.module, defaults="zeros")
    w = partition.initial() + 0.3 * torch.randn(space.size, dtype=torch.float64)
    data = shard(7)
    batch = Batch(data.inputs.double(), data.targets)
    for k in (1, 2, 3):
        found = []
        for narrow in (True, False):
            w, psi = w.detach().requires_grad_(), task.psi_space.initial().requires_grad_()
            if narrow:
                tensors = partition.materialise(w, k)
                assert sum(tensor.numel() for tensor in tensors.values()) == partition.bounds[k]
            else:
                head = torch.arange(space.size) < partition.bounds[k]
                tensors = space.tensors(partition.to_own_order(w * head))
            noise = Noise(NoiseKey(0, "test", (k,)), dtype=torch.float64)
            out = task.outputs(tensors, psi, batch.inputs, noise, dropout=False)
            loss = task.likelihood(out, batch.targets).mean()
            found.append((out, *torch.autograd.grad(loss, (w, psi))))
        assert found[0][1][partition.bounds[k] :].count_nonzero() == 0 < found[0][2].count_nonzero()
        for mine, whole in zip(*found, strict=True):
            torch.testing.assert_close(mine, whole, rtol=1e-12, atol=1e-12)


def test_every_layer_has_the_units_of_the_first_partitions():
    partition = node(nn.Sequential(nn.Conv2d(1, 10, 3), nn.Flatten(), nn.Linear(40, 20), nn.Linear(20, 4)))
    names = [entry.name for entry in partition.space.entries]
    for k, channels, units in ((1, 6, 12), (2, 9, 18), (3, 10, 20)):
        of = [(channels, 1, 3, 3), (channels,), (units, 4 * channels), (units,), (4, units), (4,)]
        assert shapes(partition, k) == dict(zip(names, of, strict=True))
    own = torch.arange(1.0, 1 + partition.bounds[2])
    for j in (1, 2):
        w_j = partition.take(own, j, 2)
        assert len(w_j) == partition.sizes[j - 1]
        back = partition.put(torch.zeros_like(own), j, 2, w_j)
        assert torch.equal(back[back > 0], w_j) and torch.equal(own[back > 0], w_j)
    w = partition.initial()
    assert torch.equal(partition.take(partition.subnetwork(w, 2), 2, 2), w[partition.slice(2)])


def layers(*between):
    return nn.Sequential(nn.Linear(6, 10), *between, nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 3))


class OwnUnits(nn.ReLU):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(10))

    def forward(self, x):
        return super().forward(x) * self.scale


@pytest.mark.parametrize(
    "module, changes, at_full_width",
    [
        (layers(nn.ReLU()), {"defaults": "initial"}, (0, 1, 2)),
        (layers(nn.ReLU()), {"chain": ("0", "2", "4")}, (0, 1, 2)),  # its forward() may count on 10 units
        (layers(nn.ReLU()), {"exclude": ["0.bias"]}, (0, 1, 2)),  # psi, and no partition has a part of it
        (layers(OwnUnits()), {}, (0, 1, 2)),
        (layers(nn.Unflatten(1, (10, 1, 1)), nn.Conv2d(10, 10, 1), nn.Flatten()), {}, (0, 1, 2)),
        (layers(nn.ReLU()), {"u": (0.03, 0.57, 0.4)}, (0, 1)),  # no layer has a unit of partition 1
        (layers(nn.ReLU()), {}, (0,)),
    ],
)
def test_where_fewer_units_will_not_do_the_width_is_the_whole_one(module, changes, at_full_width):
    partition = node(module, **changes)
    whole = {entry.name: tuple(entry.shape) for entry in partition.space.entries}
    assert tuple(k for k in (0, 1, 2) if shapes(partition, k) == whole) == at_full_width
    x = torch.randn(5, 6)
    for k in range(4):
        tensors = partition.materialise(partition.initial(), k)
        assert torch.func.functional_call(module, tensors, (x,)).shape == (5, 3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("execution", ["loop", "grouped", "fused"])
def test_a_federated_run_is_that_at_full_width(execution):
    sizes = (7, 12, 3, 9, 10, 6)
    task = Task(chain_net(dropout=False), transforms=[augmentation()], samples=2, precision="fp64")
    local = LocalSettings(0.3, weight_decay=0.1)
    if execution != "fused":
        local = LocalSettings(0.3, batch_size=4, epochs=2, momentum=0.9, weight_decay=0.1)
    runs = []
    for chain, how in ((CHAIN, "loop"), (None, execution)):
        protocol = Protocol(task, settings(len(sizes), chunks=U, local=local, chain=chain, **NODE))
        federation = Federation(protocol)
        with LocalEngine(federation, shards(sizes), execution=how) as engine:
            reports = [engine.run_round() for _ in range(2)]
        scores = [federation.evaluate(shard(20), k) for k in (1, 2, 3)]
        runs.append((federation, [(r.train_loss, r.upload_bytes) for r in reports], scores))
    (whole, reports, scores), (narrow, others, theirs) = runs
    assert whole.protocol.partition.sizes == narrow.protocol.partition.sizes
    assert shapes(narrow.protocol.partition, 1) != shapes(whole.protocol.partition, 1)
    assert_near(narrow, whole)
    for mine, other in zip([*reports, *scores], [*others, *theirs], strict=True):
        assert mine == pytest.approx(other, rel=1e-9)


def test_centralised_training_is_that_at_full_width():
    task = Task(chain_net(dropout=False), transforms=[augmentation()], samples=2, precision="fp64")
    data, options = [shard(n, n) for n in (20, 12, 8)], {"iterations": 30, "batch_size": 6, **NODE}
    train = partial(fit, task, data, optimiser=AdamSettings(0.01), evaluate_every=10, **options)
    whole, narrow = (train(chain=chain) for chain in (CHAIN, None))
    assert_near(narrow, whole, 1e-8, 1e-10)
    assert [r.lml for r in narrow.metrics] == pytest.approx([r.lml for r in whole.metrics], rel=1e-9)
