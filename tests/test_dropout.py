"""Concrete dropout: its mask, its rate, its gradient."""

import math

import pytest
import torch

from fedpart import ConcreteDropout
from fedpart.noise import Noise, NoiseKey


def mask(rate, temperature=0.1, shape=(2000, 50)):
    """1 - z for every element, without the factor 1 / (1 - p)."""
    layer = ConcreteDropout(rate, temperature)
    with Noise(NoiseKey(0, "test")).active():
        return layer(torch.ones(shape)) * (1 - rate)


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


def test_mask_follows_the_concrete_distribution():
    u = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    rate, temperature = 0.3, 0.5
    z = torch.sigmoid((math.log(rate / (1 - rate)) + u.log() - (1 - u).log()) / temperature)
    keep = mask(rate, temperature, (200_000,)).double()
    empirical = torch.quantile(keep, torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64))
    exact = torch.quantile(1 - z, torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64))
    torch.testing.assert_close(empirical, exact, rtol=0, atol=0.01)


def test_identity_in_eval_mode():
    layer = ConcreteDropout(0.4).eval()
    x = torch.randn(5, 3)
    assert layer(x) is x


def test_every_element_has_its_own_mask():
    keep = mask(0.5, shape=(4, 3, 6, 6))
    assert keep.unique().numel() > 4 * 3 * 36 * 0.2
    assert not torch.equal(keep[0], keep[1]) and not torch.equal(keep[0, 0], keep[0, 1])


def test_gradient_of_the_logit():
    """d/dlogit of x (1 - z) / (1 - p), by hand."""
    layer = ConcreteDropout(0.2, 0.3).double()
    x = torch.randn(500, dtype=torch.float64)
    with Noise(NoiseKey(1, "test"), dtype=torch.float64).active():
        out = layer(x)
        out.sum().backward()
    factor = 1 + layer.logit.detach().exp()
    keep = out.detach() / x / factor
    expected = (x * (-keep * (1 - keep) / 0.3 * factor + keep * (factor - 1))).sum()
    torch.testing.assert_close(layer.logit.grad, expected)


def test_extreme_noise_and_rates_stay_finite():
    layer = ConcreteDropout(1e-6, 0.01)
    with Noise(NoiseKey(2, "test")).active():
        out = layer(torch.ones(200_000))
        out.sum().backward()
    assert out.isfinite().all() and layer.logit.grad.isfinite()


def test_mask_has_full_precision_in_bfloat16():
    layer = ConcreteDropout(0.1)
    x = torch.ones(5000)
    with Noise(NoiseKey(3, "test")).active():
        full = layer(x)
    with Noise(NoiseKey(3, "test")).active():
        low = layer(x.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low, full.bfloat16())


def test_physical_rate():
    assert ConcreteDropout(0.1).physical() == {"rate [%]": pytest.approx(10.0, abs=1e-4)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0.0}, "strictly between 0 and 1, got 0.0; leave the layer out for 0"),
        ({"rate": 1.0}, "strictly between 0 and 1"),
        ({"rate": math.nan}, "strictly between 0 and 1"),
        ({"temperature": 0.0}, "temperature of concrete dropout is positive, got 0.0"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ConcreteDropout(**options)
