"""Blur: its kernel against Lindeberg's, what it keeps, and the gradient."""

import pytest
import torch
from every_way import assert_learned_every_way

from fedpart import GaussianBlur, uniform
from fedpart.nn.hyperparameters.blur import discrete_gaussian
from fedpart.randomness.noise import Noise, NoiseKey

VARIANCES = torch.tensor([0.0, 0.01, 0.25, 1.0, 4.0], dtype=torch.float64).view(-1, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_learned_every_way(channels):
    assert_learned_every_way(GaussianBlur(0.7, 5), shape=(channels, 6, 6))


def test_the_kernel_is_lindebergs():
    """On a line, ``exp(-t) I_n(t)``; a circle of 41 pixels is as good as one."""
    kernel = discrete_gaussian(VARIANCES, 41)
    exact = torch.cat([torch.special.i1e(VARIANCES), torch.special.i0e(VARIANCES)], 1)
    torch.testing.assert_close(kernel[:, 19:21], exact, rtol=0, atol=1e-12)
    offsets = torch.arange(-20, 21, dtype=torch.float64)
    torch.testing.assert_close((kernel * offsets**2).sum(1, keepdim=True), VARIANCES, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [3, 9])
def test_every_kernel_is_a_symmetric_mean(size):
    kernel = discrete_gaussian(torch.cat([VARIANCES, torch.tensor([[1e4]], dtype=torch.float64)]), size)
    assert (kernel > -1e-15).all()
    torch.testing.assert_close(kernel.sum(1), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(kernel, kernel.flip(1))
    torch.testing.assert_close(kernel[-1], torch.full((size,), 1 / size, dtype=torch.float64))


def test_blurs_compose_where_the_circle_does_not_matter():
    once, both = (discrete_gaussian(torch.tensor([[t]], dtype=torch.float64), 41)[0] for t in (0.5, 1.0))
    twice = torch.nn.functional.conv1d(once.view(1, 1, -1), once.view(1, 1, -1), padding=20).view(-1)
    torch.testing.assert_close(twice, both, rtol=0, atol=1e-12)


def test_a_point_becomes_the_product_of_two_kernels():
    point = torch.zeros(4, 2, 11, 13)
    point[:, :, 5, 6] = 1
    blur = GaussianBlur(1.5, 7)
    with Noise(NoiseKey(0, "test")).active():
        out = blur(point)
    with Noise(NoiseKey(0, "test")).active():
        kernel = discrete_gaussian((1.5 * uniform((4, 1), like=point)).square(), 7)
    product = (kernel[:, :, None] * kernel[:, None, :])[:, None].expand(-1, 2, -1, -1)
    torch.testing.assert_close(out[:, :, 2:9, 3:10], product)
    assert out[:, :, :2].abs().max() == 0


def test_beyond_the_edge_it_goes_on():
    even = torch.full((3, 1, 4, 5), 0.7)
    torch.testing.assert_close(GaussianBlur(2.0)(even), even)
    x = torch.rand(3, 2, 8, 8)
    torch.testing.assert_close(GaussianBlur(0.0)(x), x, rtol=0, atol=1e-5)


def test_a_small_blur_can_be_learned():
    """The neighbours begin as t / 2, so no gradient is an exponential of 1 / t."""
    t = torch.tensor([[1e-3]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(discrete_gaussian(t, 9)[0, 5], t)
    assert slope.item() == pytest.approx(0.5, rel=2e-3)


def test_physical_widths_and_text():
    blur = GaussianBlur(-0.5, 5)
    assert blur.physical() == {"largest sigma [pixels]": 0.5} and blur.widths().tolist() == [0.5]
    assert repr(blur) == "GaussianBlur(kernel_size=5)"
