"""SpecAugment's masks over time and frequency: where the stripe lies, its width, and the gradient."""

import pytest
import torch
from every_way import assert_learned_every_way

from fedpart import FrequencyMask, TimeMask, uniform
from fedpart.randomness.noise import Noise, NoiseKey

MASKS = {TimeMask: -1, FrequencyMask: -2}


def masked(mask, x, key=0):
    """``x`` after it, and the start and width of each row's stripe as fractions of the axis."""
    with Noise(NoiseKey(key, "test")).active():
        out = mask(x).detach()
    with Noise(NoiseKey(key, "test")).active():
        width, place = uniform((len(x), 2), like=x).unbind(1)
    width = width * mask.width.detach().abs()
    return out, place * (1 - width).clamp(min=0), width


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [(7, 9), (2, 7, 9)])
def test_it_is_learned_every_way(mask, shape):
    assert_learned_every_way(mask(0.5), shape=shape)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [(30, 50), (2, 30, 50)])
def test_hard_edges_take_a_stripe(mask, shape):
    axis = MASKS[mask]
    x = torch.rand(20, *shape) + 1
    out, start, width = masked(mask(0.4, softness=1e-4), x)
    places = ((torch.arange(shape[axis]) + 0.5) / shape[axis]).view(-1, *[1] * (-1 - axis))
    start, width = (of.view(-1, *[1] * len(shape)) for of in (start, width))
    kept = (places < start) | (places > start + width)
    torch.testing.assert_close(out, x * kept)
    assert (out == 0).any() and (start >= 0).all() and (start + width <= 1).all()


@pytest.mark.parametrize("mask", MASKS)
def test_soft_edges_take_as_much(mask):
    x = torch.ones(200, 100, 100)
    out, start, width = masked(mask(0.4), x)
    inside = (start > 0.1) & (start + width < 0.9)
    torch.testing.assert_close((1 - out).sum((1, 2))[inside], 100 * 100 * width[inside], rtol=1e-3, atol=0.1)


def test_width_0_is_the_identity_the_sign_is_nothing_and_more_than_all_is_all():
    x = torch.rand(5, 30, 40)
    assert torch.equal(masked(TimeMask(0.0), x)[0], x)
    torch.testing.assert_close(masked(TimeMask(-0.3), x)[0], masked(TimeMask(0.3), x)[0])
    out, _, width = masked(TimeMask(5.0), x)
    assert (width > 1.2).any() and out[width > 1.2][:, :, 2:].abs().max() < 0.1


def test_physical_widths_and_text():
    mask = TimeMask(-0.2)
    assert mask.physical() == {"largest width [%]": pytest.approx(20)}
    assert mask.widths().tolist() == pytest.approx([0.2])
    assert repr(FrequencyMask(softness=1.5)) == "FrequencyMask(softness=1.5)"
