"""Networks that nobody changed: equal bits in workers, no leak to earlier chunks, clients together."""

import pytest
import torch
from problems import Recorder

from fedpart import AdamSettings, ClientError
from stock import STOCK
from stock.training import SIZES, data_of, federation_of, trained

pytestmark = pytest.mark.slow

WHOLE = {"DistilBert", "GPT-2"}  # those with adapters have the same layers
NETWORKS = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in WHOLE else []) for name in STOCK]
)


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
def test_chunk_k_reaches_no_earlier_partition(name):
    """As in engines/test_lml.py; psi is frozen by a server that does not step it."""
    stock, rounds = STOCK[name], 2
    frozen = {"kind": Recorder, "server_psi": AdamSettings(1e-30), "batch_size": 8}
    data, other = data_of(stock), data_of(stock, 77)
    whole = trained(federation_of(stock, **frozen), data, rounds)
    for k in (2, 3):
        mine = [whole.protocol.chunk(client) == k for client in range(len(SIZES))]
        replaced = [theirs if hit else ours for hit, ours, theirs in zip(mine, data, other, strict=True)]
        found = trained(federation_of(stock, **frozen), replaced, rounds)
        for j in (1, 2, 3):
            w_j = whole.partition.slice(j)
            assert torch.equal(whole.w[w_j], found.w[w_j]) == (j < k), f"chunk {k}, w_{j}"
        psi = [(a["psi"], b["psi"]) for a, b in zip(whole.totals, found.totals, strict=True)]
        assert any(not torch.equal(*both) for both in psi), "the psi gradient changes"


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
