"""Concrete dropout, of elements and of whole tokens: its mask, its rate, its gradient."""

import itertools
import math

import pytest
import torch
from draws import alike
from every_way import assert_learned_every_way
from torch import nn

from fedpart import ConcreteDropout, TokenDropout
from fedpart.nn.hyperparameters import dropout as concrete
from fedpart.randomness.noise import Noise, NoiseKey, coarse_numbers


def mask(rate, temperature=0.1, shape=(2000, 50)):
    """1 - z for every element, without the factor 1 / (1 - p)."""
    return alike(lambda: ConcreteDropout(rate, temperature)(torch.ones(shape)) * (1 - rate))


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.9])
def test_mask(rate):
    keep = mask(rate)
    assert keep.min() >= 0 and keep.max() <= 1 + 1e-6
    assert keep.mean().item() == pytest.approx(1 - rate, abs=0.01)  # relaxed, so not exactly
    # More than half open: with probability 1 - p whatever the temperature; 4 standard errors.
    error = 4 * math.sqrt(rate * (1 - rate) / keep.numel())
    assert (keep > 0.5).double().mean().item() == pytest.approx(1 - rate, abs=error)
    relaxed = ((keep > 0.05) & (keep < 0.95)).double().mean()
    assert relaxed < 0.25  # nearly binary at this temperature
    assert not torch.equal(keep[0], keep[1]) and not torch.equal(keep[:, 0], keep[:, 1])


BOTH = pytest.mark.parametrize("kind", [ConcreteDropout, TokenDropout])


@BOTH
def test_identity_in_eval_mode(kind):
    layer, x = kind(0.4).eval(), torch.randn(5, 3, 2)
    assert layer(x) is x


@BOTH
def test_gradient_of_the_logit(kind):
    """d/dlogit of x (1 - z) / (1 - p), by hand."""
    layer = kind(0.2, 0.3).double()
    x = torch.rand(50, 6, 3, dtype=torch.float64) + 1
    out = alike(lambda: layer(x), seed=1, dtype=torch.float64)
    out.sum().backward()
    factor = 1 + layer.logit.detach().exp()
    keep = out.detach() / x / factor
    expected = (x * (-keep * (1 - keep) / 0.3 * factor + keep * (factor - 1))).sum()
    torch.testing.assert_close(layer.logit.grad, expected)


def bits(shape, channels_last=False):
    noise = Noise(NoiseKey(4, "test"))
    noise.rewind(channels_last)
    return noise.bits(shape)


def looked_up_and_computed(x, drawn, weights, logit=-1.3, temperature=0.2):
    """Outputs and gradients: by the tables, and by autograd of the formula in double precision."""
    found = []
    for wide in (False, True):
        kind = torch.float64 if wide else x.dtype
        leaf = x.detach().to(kind).requires_grad_()
        of_rate = torch.tensor(logit, dtype=torch.promote_types(kind, torch.float32)).requires_grad_()
        if wide:
            out = leaf * concrete.keep(coarse_numbers(drawn).double(), of_rate, temperature)
        else:
            out = concrete.masked(leaf, drawn, of_rate, temperature)
        gradients = torch.autograd.grad(out, (leaf, of_rate), weights.to(out.dtype))
        found.append((out.detach(), *gradients))
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_looking_up_is_computing(dtype, subtests):
    shapes = ((), (1,), (3, 7), (0, 4), (5, 3, 4, 6), (2, 1, 3, 3), (40, 50, 7, 7))
    for shape, channels_last in itertools.product(shapes, (False, True)):
        with subtests.test(str((shape, channels_last))):
            assert_looked_up_as_computed(shape, dtype, channels_last)


def assert_looked_up_as_computed(shape, dtype, channels_last):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    if channels_last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    ours, exact = looked_up_and_computed(x, bits(shape, channels_last), weights)
    tolerance = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    for a, b in zip(ours[:2], exact[:2], strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, **tolerance)
    spread = max(1.0, x.numel() ** 0.5)
    assert abs(ours[2].double() - exact[2]) <= tolerance["atol"] * spread * (1 + abs(exact[2]))


def test_every_noise_has_its_mask():
    """All 65,536 of them, in order: the layer's own bits decide which one is looked up."""
    drawn = torch.arange(-(2**15), 2**15).to(torch.int16)
    logit = torch.tensor(-2.0)
    mask = concrete.masked(torch.ones(2**16), drawn, logit, 0.1)
    u = (torch.arange(2**16, dtype=torch.float64) + 0.5) * 2.0**-16
    torch.testing.assert_close(mask.double(), concrete.keep(u, logit.double(), 0.1), rtol=3e-6, atol=1e-7)
    assert (mask.diff() <= 0).all()


def test_without_numba_the_mask_is_the_same_to_the_bit(monkeypatch):
    x, weights = torch.randn(2, 6, 5, 4, 4)
    drawn = bits(x.shape, channels_last=True)
    compiled, _ = looked_up_and_computed(x, drawn, weights)
    monkeypatch.setattr(concrete, "look_up_kernel", lambda: None)
    plain, _ = looked_up_and_computed(x, drawn, weights)
    assert all(torch.equal(a, b) for a, b in zip(compiled, plain, strict=True))


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_layer_is_the_same_whether_it_looks_up_or_not(channels_last, monkeypatch):
    x = torch.randn(6, 5, 4, 4)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    layer, found = ConcreteDropout(0.3), []
    for _ in range(2):
        with Noise(NoiseKey(5, "test")).active(channels_last):
            out = layer(layer(x))
        found.append((out.detach(), torch.autograd.grad(out.square().sum(), layer.logit)[0]))
        monkeypatch.setattr("fedpart.nn.hyperparameters.dropout.coarse_bits", lambda shape: None)
    torch.testing.assert_close(*found, rtol=2e-6, atol=1e-6)


def test_extreme_rates_stay_finite_what_is_not_a_number_stays_so_and_frozen_rates_have_no_gradient():
    layer = ConcreteDropout(1e-6, 0.01)
    out = alike(lambda: layer(torch.ones(200_000)), seed=2)
    out.sum().backward()
    assert out.isfinite().all() and layer.logit.grad.isfinite()
    layer = ConcreteDropout(0.3)
    x = torch.ones(4, 5, requires_grad=True)
    x.data[1, 2] = torch.nan
    out = alike(lambda: layer(x))
    out.sum().backward()
    assert out.isnan().sum() == 1 and out[1, 2].isnan()
    assert x.grad.isfinite().all() and layer.logit.grad.isnan()
    layer.logit.data.fill_(torch.nan)
    assert alike(lambda: layer(x)).isnan().all()
    frozen, x = ConcreteDropout(0.3).requires_grad_(False), torch.ones(4, 5, requires_grad=True)
    out = alike(lambda: frozen(x))
    out.sum().backward()
    assert torch.equal(x.grad, out.detach()) and frozen.logit.grad is None


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
    return alike(lambda: TokenDropout(rate, temperature)(torch.ones(shape))).detach() * (1 - rate)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_whole_tokens_are_dropped_with_the_rate(rate):
    mask = kept(rate)
    assert torch.equal(mask, mask[..., :1].expand_as(mask))
    assert (mask[:, 0, 0] != mask[:, 1, 0]).any() and (mask[0] != mask[1]).any()
    error = 4 * math.sqrt(rate * (1 - rate) / mask[..., 0].numel())
    assert (mask[..., 0] > 0.5).double().mean().item() == pytest.approx(1 - rate, abs=error)
