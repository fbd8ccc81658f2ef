"""Cutout: where the square lies, how much it takes, and the gradient."""

import pytest
import torch
from every_way import assert_learned_every_way

from fedpart import Cutout, uniform
from fedpart.randomness.noise import Noise, NoiseKey


def cut(side, shape=(8, 3, 40, 60), softness=0.5):
    """What is left of ones, and the centres of the holes in pixels (down, across)."""
    with Noise(NoiseKey(0, "test")).active():
        out = Cutout(side, softness)(torch.ones(shape)).detach()
    with Noise(NoiseKey(0, "test")).active():
        return out, uniform((shape[0], 2), like=out) * torch.tensor(shape[2:])


@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_learned_every_way(channels):
    assert_learned_every_way(Cutout(0.5), shape=(channels, 6, 6))


def test_hard_edges_cut_a_square():
    """Of 0.3 times the shorter side, 40 pixels: 12 pixels down and across, in all channels."""
    out, centres = cut(0.3, softness=1e-4)
    down = (torch.arange(40) + 0.5 - centres[:, :1]).abs() < 6
    across = (torch.arange(60) + 0.5 - centres[:, 1:]).abs() < 6
    hole = (down[:, :, None] & across[:, None, :])[:, None].expand(-1, 3, -1, -1)
    torch.testing.assert_close(out, 1 - hole.float())


def test_soft_edges_take_as_much():
    out, centres = cut(0.3)
    inside = ((centres > 10) & (centres < torch.tensor([30, 50]))).all(1)
    assert inside.any()
    taken = (1 - out[inside]).sum((2, 3))
    torch.testing.assert_close(taken, torch.full_like(taken, 144.0), rtol=1e-3, atol=0)


def test_side_0_is_the_identity_and_the_sign_is_nothing():
    assert torch.equal(cut(0.0)[0], torch.ones(8, 3, 40, 60))
    torch.testing.assert_close(cut(-0.3)[0], cut(0.3)[0])


def test_the_gradient_is_minus_what_the_edges_would_take():
    """The sum falls by twice the side (in pixels) for every pixel that the side grows."""
    cutout = Cutout(0.3)
    x = torch.ones(200, 1, 40, 40)
    with Noise(NoiseKey(1, "test")).active():
        out = cutout(x)
    with Noise(NoiseKey(1, "test")).active():
        centres = 40 * uniform((200, 2), like=x)
    inside = ((centres > 10) & (centres < 30)).all(1)
    (slope,) = torch.autograd.grad(out[inside].sum() / inside.sum(), cutout.side)
    assert slope.item() == pytest.approx(-2 * 12 * 40, rel=1e-2)


def test_physical_and_text():
    assert Cutout(-0.25).physical() == {"side [%]": 25} and Cutout().widths() is None
    assert repr(Cutout(softness=2.0)) == "Cutout(softness=2.0)"
