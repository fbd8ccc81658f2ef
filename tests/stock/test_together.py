"""Networks that nobody changed, several clients computed together."""

import pytest
import torch

from fedpart import ClientError
from stock import STOCK
from stock.training import data_of, federation_of, trained


@pytest.mark.parametrize("name", STOCK)
def test_together_is_one_by_one_to_rounding_or_a_sentence_says_what_to_use(name):
    stock = STOCK[name]
    once = {"of": {"precision": "fp64"}, "batch_size": 8}
    expected = trained(federation_of(stock, **once), data_of(stock), 1)
    for execution, refused in (("vectorised", stock.vectorised), ("fused", stock.fused)):
        federation = federation_of(stock, **once)
        if refused is None:
            trained(federation, data_of(stock), 1, execution=execution)
            torch.testing.assert_close(federation.w, expected.w, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(federation.psi, expected.psi, rtol=1e-8, atol=1e-8)
        else:
            with pytest.raises((ValueError, ClientError), match=refused):
                trained(federation, data_of(stock), 1, execution=execution)
