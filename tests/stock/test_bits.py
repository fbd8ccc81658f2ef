"""Networks that nobody changed: equal bits in worker processes, and constants that stay."""

import pytest
import torch

from stock import STOCK
from stock.training import data_of, federation_of, trained


@pytest.mark.parametrize("name", STOCK)
def test_five_rounds_have_the_same_bits_in_workers_and_leave_constants_alone(name):
    stock = STOCK[name]
    one, two = (trained(federation_of(stock), data_of(stock), 5, workers, seed=workers) for workers in (1, 2))
    assert torch.equal(one.w, two.w) and torch.equal(one.psi, two.psi)
    assert not torch.equal(one.psi, one.task.psi_space.initial())
    given = {n: p for n, p in stock.network().named_parameters() if not p.requires_grad}
    assert bool(given) == stock.frozen
    kept = {**given, **dict(stock.network().named_buffers())}  # statistics too
    found = dict([*one.module().named_parameters(), *one.module().named_buffers()])
    assert all(torch.equal(found[name], tensor) for name, tensor in kept.items())
    trains = {entry.name for entry in one.partition.space.entries}
    assert not trains & given.keys(), "constants are in no partition, and so in no message"
