"""Networks that nobody changed: no bit of chunk k's data reaches w_j for j < k, as in test_leak.py."""

import pytest
import torch
from problems import Recorder

from fedpart import AdamSettings
from stock import STOCK
from stock.training import SIZES, data_of, federation_of, trained


@pytest.mark.parametrize("name", STOCK)
def test_chunk_k_reaches_no_earlier_partition(name):
    """psi is frozen by a server that does not step it."""
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
