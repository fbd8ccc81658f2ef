"""Transforms of images in closed form: blur, colour, flips."""

import math

import pytest
import torch
from draws import alike

from fedpart import ColourJitter, GaussianBlur, RandomFlip, uniform
from fedpart.nn.hyperparameters.images import discrete_gaussian

VARIANCES = torch.tensor([0.0, 0.01, 0.25, 1.0, 4.0], dtype=torch.float64).view(-1, 1)


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


def test_a_point_becomes_the_product_of_two_kernels():
    point = torch.zeros(4, 2, 11, 13)
    point[:, :, 5, 6] = 1
    blur = GaussianBlur(1.5, 7)
    out, u = alike(lambda: blur(point), lambda: uniform((4, 1), like=point))
    kernel = discrete_gaussian((1.5 * u).square(), 7)
    product = (kernel[:, :, None] * kernel[:, None, :])[:, None].expand(-1, 2, -1, -1)
    torch.testing.assert_close(out[:, :, 2:9, 3:10], product)
    assert out[:, :, :2].abs().max() == 0


def test_beyond_the_edge_an_image_goes_on_and_a_small_blur_can_be_learned():
    even = torch.full((3, 1, 4, 5), 0.7)
    torch.testing.assert_close(GaussianBlur(2.0)(even), even)
    x = torch.rand(3, 2, 8, 8)
    torch.testing.assert_close(GaussianBlur(0.0)(x), x, rtol=0, atol=1e-5)
    # The neighbours begin as t / 2, so no gradient is an exponential of 1 / t.
    t = torch.tensor([[1e-3]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(discrete_gaussian(t, 9)[0, 5], t)
    assert slope.item() == pytest.approx(0.5, rel=2e-3)


NONE = dict.fromkeys(("brightness", "contrast", "saturation", "hue"))
LUMA = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)


def images(channels=3, n=6):
    return torch.rand(n, channels, 5, 7, generator=torch.Generator().manual_seed(0))


def jittered(x, **ranges):
    """``x`` after it, and the number in (-1, 1) that each row has drawn."""
    jitter = ColourJitter(**{**NONE, **ranges})
    out, u = alike(lambda: jitter(x).detach(), lambda: uniform((len(x), len(ranges)), like=x))
    return out, (2 * u - 1).view(len(x), -1, 1, 1, 1).unbind(1)


def luma(x):
    return (x * LUMA).sum(1, keepdim=True)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_brightness_is_added(channels):
    x = images(channels)
    out, (u,) = jittered(x, brightness=0.3)
    torch.testing.assert_close(out, x + 0.3 * u)


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_is_the_distance_to_the_mean_luma_and_saturation_that_to_grey(channels):
    x = images(channels)
    out, (u,) = jittered(x, contrast=0.3)
    mean = (luma(x) if channels == 3 else x).mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(out - mean, (1 + 0.3 * u) * (x - mean))
    if channels == 3:
        out, (u,) = jittered(x, saturation=0.3)
        torch.testing.assert_close(out - luma(x), (1 + 0.3 * u) * (x - luma(x)))


def test_hue_is_a_rotation_in_yiq_and_grey_has_none():
    yiq = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    x = images()
    out, (u,) = jittered(x, hue=0.3)
    for row, turned, part in zip(x, out, u, strict=True):
        luma, i, q = (yiq @ row.flatten(1)).unbind(0)
        angle = 2 * math.pi * 0.3 * part.view(())
        rotated = [luma, angle.cos() * i - angle.sin() * q, angle.sin() * i + angle.cos() * q]
        torch.testing.assert_close(yiq @ turned.flatten(1), torch.stack(rotated), rtol=0, atol=1e-5)
    x = images(1).expand(-1, 3, -1, -1)
    out, _ = jittered(x, saturation=0.9, hue=0.5)
    torch.testing.assert_close(out, x, rtol=0, atol=1e-6)
    torch.testing.assert_close(jittered(images(), **dict.fromkeys(NONE, 0.0))[0], images())


def weights(probability, temperature=0.1, axis="horizontal", n=20_000):
    """z of every row: the image is 1 on the side that a flip would bring, and 0 on the other."""
    x = torch.zeros(n, 1, 2, 2)
    x[:, :, 0, 0] = 1
    out = alike(lambda: RandomFlip(probability, axis, temperature)(x).detach())
    torch.testing.assert_close(out.sum((1, 2, 3)), torch.ones(n))
    return out[:, 0, 0, 1] if axis == "horizontal" else out[:, 0, 1, 0]


@pytest.mark.parametrize(
    "probability, temperature, axis",
    [(0.1, 0.01, "horizontal"), (0.5, 0.1, "horizontal"), (0.8, 1.0, "horizontal"), (0.1, 0.1, "vertical")],
)
def test_more_than_half_is_flipped_with_the_probability(probability, temperature, axis):
    z = weights(probability, temperature, axis)
    error = 4 * math.sqrt(probability * (1 - probability) / len(z))
    assert (z > 0.5).double().mean().item() == pytest.approx(probability, abs=error)


def test_double_exposures_are_as_many_as_the_text_says():
    """z between 0.05 and 0.95 is u within sigmoid(-+temperature * logit 0.95)."""
    exact = 2 * torch.sigmoid(0.1 * torch.special.logit(torch.tensor(0.95))) - 1
    assert exact.item() == pytest.approx(0.15, abs=0.005)
    z = weights(0.5)
    found = ((z > 0.05) & (z < 0.95)).double().mean().item()
    assert found == pytest.approx(exact.item(), abs=4 * math.sqrt(0.15 * 0.85 / len(z)))


def test_a_symmetric_image_stays_and_a_certain_flip_is_one():
    x = torch.rand(3, 2, 4, 5)
    even = x + x.flip(3)
    torch.testing.assert_close(RandomFlip()(even), even)
    for axis, dim in (("horizontal", 3), ("vertical", 2)):
        torch.testing.assert_close(RandomFlip(1 - 1e-7, axis, 1e-3)(x), x.flip(dim))
        torch.testing.assert_close(RandomFlip(1e-7, axis, 1e-3)(x), x)
