"""Networks that nobody changed, in float64: two rounds are those of an independent loop over plain torch.

Dropout is off, as their authors switch it off: its rate is 0. So both sides see the same.
"""

import pytest
import torch
from problems import reference_rounds, settings
from torch import nn
from torch.func import functional_call

from fedpart import AdamSettings, Dataset, Federation, LocalSettings, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.trees import map_leaves
from stock import STOCK

ROUNDS, SIZES = 2, (3, 4, 2, 3)
NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def double(leaf):
    return leaf.double() if leaf.is_floating_point() else leaf


def started(stock):
    task = Task(stock.network(0.0), samples=1, precision="fp64", **stock.of())
    rates = {"server": AdamSettings(1e-2), "server_psi": AdamSettings(5e-2)}
    rates |= {"local": LocalSettings(learning_rate=0.1)}
    return Federation(Protocol(task, settings(len(SIZES), chunks=(0.5, 0.25, 0.25), cohort=3, **rates)))


def reference(stock, federation, shards):
    """The same rounds by the loop in plain torch, of the network as it was given."""
    module, protocol = stock.network(0.0, plain=True).double(), federation.protocol
    inside = {name: p for name, p in module.named_parameters() if name in protocol.task.psi_names}
    weights = {n: p for n, p in module.named_parameters() if p.requires_grad and n not in inside}
    folds = {
        f"{prefix}.{name}": fold
        for prefix, layer in module.named_modules()
        for name, fold in (("weight", "product"), ("bias", "sum"))
        if isinstance(layer, NORMS) and f"{prefix}.{name}" in weights
    }

    def loss(named, psi, inputs, targets):
        tensors = {**named, **{name: psi.view(p.shape) for name, p in inside.items()}}
        return stock.value(
            lambda *args, **kwargs: functional_call(module, tensors, args, kwargs), psi, inputs, targets
        )

    doubles = [map_leaves(double, shard) for shard in shards]
    return reference_rounds(federation, loss, weights, folds, doubles, ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", STOCK)
def test_two_rounds_are_those_of_plain_torch(name):
    stock = STOCK[name]
    shards = [stock.shard(examples, client) for client, examples in enumerate(SIZES)]
    federation = started(stock)
    partition = federation.partition
    engine = LocalEngine(federation, [Dataset(*shard) for shard in shards])
    first = federation.w.clone(), federation.psi.clone()
    for w, psi, _ in reference(stock, federation, shards):
        engine.run_round()
        torch.testing.assert_close(partition.to_own_order(federation.w), w, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(federation.psi, psi, rtol=1e-10, atol=1e-10)
    assert not torch.equal(first[0], federation.w) and not torch.equal(first[1], federation.psi)
