"""Networks that nobody changed, as they are: equal bits in worker processes, no leak, constants that stay."""

import pytest
import torch
from problems import Recorder, settings
from stock import STOCK

from fedpart import AdamSettings, ClientError, Dataset, Federation, LocalSettings, Protocol, Task
from fedpart.engines import LocalEngine

SIZES, CHUNKS = (3, 2, 2, 3), (0.5, 0.25, 0.25)


def data_of(stock, seed=0):
    return [Dataset(*stock.shard(examples, seed + client)) for client, examples in enumerate(SIZES)]


def federation_of(stock, kind=Federation, of=None, dropout=0.2, batch_size=2, **changes):
    """All dropout of the network is on, and its rates are learned where they are those of layers."""
    task = Task(stock.network(dropout), **{"samples": 1, "learn_dropout": True, **stock.of(), **(of or {})})
    local = LocalSettings(learning_rate=0.1, batch_size=batch_size)
    return kind(Protocol(task, settings(len(SIZES), chunks=CHUNKS, local=local, **changes)))


def trained(federation, data, rounds, workers=1, execution="loop", seed=0):
    """``seed`` is that of torch's global generator, which nothing may depend on."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with LocalEngine(federation, data, workers, execution) as engine:
            engine.run(rounds)
    return federation


@pytest.mark.parametrize("name", STOCK)
def test_five_rounds_have_the_same_bits_in_workers_and_leave_constants_alone(name):
    stock = STOCK[name]
    one, two = (
        trained(federation_of(stock), data_of(stock), 5, workers, seed=workers) for workers in (1, 2)
    )
    assert torch.equal(one.w, two.w) and torch.equal(one.psi, two.psi)
    assert not torch.equal(one.psi, one.task.psi_space.initial())
    given = {n: p for n, p in stock.network().named_parameters() if not p.requires_grad}
    assert bool(given) == stock.frozen
    found = dict(one.module().named_parameters())
    assert all(torch.equal(found[name], p) for name, p in given.items())
    trains = {entry.name for entry in one.partition.space.entries}
    assert not trains & given.keys(), "constants are in no partition, and so in no message"


@pytest.mark.parametrize("name", STOCK)
def test_chunk_k_reaches_no_earlier_partition(name):
    """As in test_leak.py: psi is frozen by a server that does not step it."""
    stock, rounds = STOCK[name], 2
    frozen = {"kind": Recorder, "server_psi": AdamSettings(1e-30)}
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


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("execution", ["vectorised", "fused"])
def test_together_is_one_by_one_to_rounding_or_a_sentence_says_what_to_use(name, execution):
    stock = STOCK[name]
    refused = getattr(stock, execution)
    once = {"of": {"precision": "fp64"}, "batch_size": 8}
    federation = federation_of(stock, **once)
    if refused is not None:
        with pytest.raises((ValueError, ClientError), match=refused):
            trained(federation, data_of(stock), 1, execution=execution)
        return
    found = trained(federation, data_of(stock), 1, execution=execution)
    expected = trained(federation_of(stock, **once), data_of(stock), 1)
    torch.testing.assert_close(found.w, expected.w, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.psi, expected.psi, rtol=1e-8, atol=1e-8)
