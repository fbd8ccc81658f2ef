"""Networks that nobody changed: equal bits in workers, and clients that are computed together."""

import pytest
import torch

from fedpart import ClientError
from stock import STOCK
from stock.training import data_of, federation_of, trained

pytestmark = pytest.mark.slow

NETWORKS = pytest.mark.parametrize("name", STOCK)


@NETWORKS
def test_two_rounds_have_the_same_bits_in_workers_and_leave_constants_alone(name):
    stock = STOCK[name]
    one, two = (trained(federation_of(stock), data_of(stock), 2, workers, seed=workers) for workers in (1, 2))
    assert torch.equal(one.w, two.w) and torch.equal(one.psi, two.psi)
    assert not torch.equal(one.psi, one.task.psi_space.initial())
    given = {n: p for n, p in stock.network().named_parameters() if not p.requires_grad}
    assert bool(given) == stock.frozen
    kept = {**given, **dict(stock.network().named_buffers())}  # statistics too
    found = dict([*one.module().named_parameters(), *one.module().named_buffers()])
    assert all(torch.equal(found[name], tensor) for name, tensor in kept.items())
    trains = {entry.name for entry in one.partition.space.entries}
    assert not trains & given.keys(), "constants are in no partition, and so in no message"


@NETWORKS
def test_together_is_one_by_one_to_rounding_or_a_sentence_says_what_to_use(name):
    stock = STOCK[name]
    once = {"of": {"precision": "fp64"}, "batch_size": 8}
    expected = trained(federation_of(stock, **once), data_of(stock), 1)
    for execution, refused in (("grouped", stock.grouped), ("fused", stock.fused)):
        federation = federation_of(stock, **once)
        if refused is None:
            trained(federation, data_of(stock), 1, execution=execution)
            torch.testing.assert_close(federation.w, expected.w, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(federation.psi, expected.psi, rtol=1e-8, atol=1e-8)
        else:
            with pytest.raises((ValueError, ClientError), match=refused):
                trained(federation, data_of(stock), 1, execution=execution)
