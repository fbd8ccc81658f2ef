"""Colour: each part alone against its closed form, what stays as it is, and the gradient."""

import math

import pytest
import torch
from every_way import assert_learned_every_way

from fedpart import ColourJitter, uniform
from fedpart.randomness.noise import Noise, NoiseKey

NONE = dict.fromkeys(("brightness", "contrast", "saturation", "hue"))
LUMA = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
KEY = NoiseKey(0, "test")


def images(channels=3, n=6):
    return torch.rand(n, channels, 5, 7, generator=torch.Generator().manual_seed(0))


def jittered(x, **ranges):
    """``x`` after it, and the number in (-1, 1) that each row has drawn."""
    with Noise(KEY).active():
        out = ColourJitter(**{**NONE, **ranges})(x).detach()
    with Noise(KEY).active():
        return out, (2 * uniform((len(x), len(ranges)), like=x) - 1).view(len(x), -1, 1, 1, 1).unbind(1)


def luma(x):
    return (x * LUMA).sum(1, keepdim=True)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_it_is_learned_every_way(channels):
    parts = {} if channels == 3 else {"saturation": None, "hue": None}
    assert_learned_every_way(ColourJitter(**parts), shape=(channels, 6, 6))


@pytest.mark.parametrize("part", NONE)
def test_each_part_is_learned_alone(part):
    assert_learned_every_way(ColourJitter(**{**NONE, part: 0.2}), shape=(3, 6, 6))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_brightness_is_added(channels):
    x = images(channels)
    out, (u,) = jittered(x, brightness=0.3)
    torch.testing.assert_close(out, x + 0.3 * u)


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_is_the_distance_to_the_mean_luma(channels):
    x = images(channels)
    out, (u,) = jittered(x, contrast=0.3)
    mean = (luma(x) if channels == 3 else x).mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(out - mean, (1 + 0.3 * u) * (x - mean))


def test_saturation_is_the_distance_to_grey():
    x = images()
    out, (u,) = jittered(x, saturation=0.3)
    torch.testing.assert_close(out - luma(x), (1 + 0.3 * u) * (x - luma(x)))


def test_hue_is_a_rotation_in_yiq():
    yiq = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    x = images()
    out, (u,) = jittered(x, hue=0.3)
    for row, turned, part in zip(x, out, u, strict=True):
        luma, i, q = (yiq @ row.flatten(1)).unbind(0)
        angle = 2 * math.pi * 0.3 * part.view(())
        rotated = [luma, angle.cos() * i - angle.sin() * q, angle.sin() * i + angle.cos() * q]
        torch.testing.assert_close(yiq @ turned.flatten(1), torch.stack(rotated), rtol=0, atol=1e-5)


def test_turning_back_and_turning_fully_is_nothing():
    x, jitter = images(), ColourJitter()
    colour = x - luma(x)
    whole = jitter._coloured(colour, {"hue": torch.tensor(1.0)})
    torch.testing.assert_close(whole, colour, rtol=0, atol=1e-5)
    there = jitter._coloured(colour, {"hue": torch.tensor(0.2)})
    torch.testing.assert_close(
        jitter._coloured(there, {"hue": torch.tensor(-0.2)}), colour, rtol=0, atol=1e-6
    )
    torch.testing.assert_close(luma(there), torch.zeros_like(luma(x)), rtol=0, atol=1e-6)


def test_grey_has_no_hue_and_no_saturation():
    x = images(1).expand(-1, 3, -1, -1)
    out, _ = jittered(x, saturation=0.9, hue=0.5)
    torch.testing.assert_close(out, x, rtol=0, atol=1e-6)


def test_ranges_of_0_are_the_identity():
    torch.testing.assert_close(jittered(images(), **dict.fromkeys(NONE, 0.0))[0], images())


def test_physical_widths_and_text():
    jitter = ColourJitter(-0.2, None, 0.3, 0.1)
    assert jitter.physical() == pytest.approx(
        {"brightness [+-%]": 20, "saturation [+-%]": 30, "hue [+-deg]": 36}
    )
    torch.testing.assert_close(jitter.widths().detach(), torch.tensor([0.4, 0.6, 0.2]))
    assert repr(jitter) == "ColourJitter(brightness, saturation, hue)"
