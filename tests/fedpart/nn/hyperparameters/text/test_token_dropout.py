"""Token dropout: whole tokens, rescaled; its gradient, behind an embedding."""

import math

import pytest
import torch
from every_way import assert_learned_every_way
from torch import nn

from fedpart import TokenDropout
from fedpart.randomness.noise import Noise, NoiseKey


def tokens(n, shape, seed):
    return torch.randint(0, 11, (n, *shape), generator=torch.Generator().manual_seed(seed))


def reader(shape, classes, *layers):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(11, 4), *layers, nn.Flatten(), nn.Linear(4 * shape.numel(), 8), nn.Tanh(),
        nn.Linear(8, classes),
    )  # fmt: skip


def test_it_is_learned_every_way():
    assert_learned_every_way(layer=TokenDropout(0.3, 0.5), shape=(7,), inputs=tokens, network=reader)


def kept(rate, temperature=0.1, shape=(500, 40, 3)):
    with Noise(NoiseKey(0, "test")).active():
        return TokenDropout(rate, temperature)(torch.ones(shape)).detach() * (1 - rate)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_whole_tokens_are_dropped_with_the_rate(rate):
    mask = kept(rate)
    assert torch.equal(mask, mask[..., :1].expand_as(mask))
    assert (mask[:, 0, 0] != mask[:, 1, 0]).any() and (mask[0] != mask[1]).any()
    error = 4 * math.sqrt(rate * (1 - rate) / mask[..., 0].numel())
    assert (mask[..., 0] > 0.5).double().mean().item() == pytest.approx(1 - rate, abs=error)


def test_gradient_of_the_logit():
    """d/dlogit of x (1 - z) / (1 - p), by hand."""
    layer = TokenDropout(0.2, 0.3).double()
    x = torch.rand(50, 6, 3, dtype=torch.float64) + 1
    with Noise(NoiseKey(1, "test"), dtype=torch.float64).active():
        out = layer(x)
    out.sum().backward()
    factor = 1 + layer.logit.detach().exp()
    keep = out.detach() / x / factor
    torch.testing.assert_close(
        layer.logit.grad, (x * (-keep * (1 - keep) / 0.3 * factor + keep * (factor - 1))).sum()
    )


def test_identity_in_eval_mode_and_what_a_person_reads():
    layer, x = TokenDropout(0.4).eval(), torch.randn(5, 3, 2)
    assert layer(x) is x
    assert layer.physical() == {"rate [%]": pytest.approx(40)}
    assert repr(layer) == "TokenDropout(temperature=0.1)"
