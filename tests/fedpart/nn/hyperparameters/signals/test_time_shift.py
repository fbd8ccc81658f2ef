"""Time shifts: of straight lines and whole places in closed form, what lies outside, and the gradient."""

import math

import pytest
import torch
from every_way import assert_learned_every_way

from fedpart import TimeShift, uniform
from fedpart.randomness.noise import Noise, NoiseKey

OUTSIDE = ("zeros", "border", "circular")


def shifted(x, reach, outside="zeros"):
    """``x`` after it, and each row's delay in places, ``[rows, 1, 1]``."""
    shift = TimeShift(reach, outside).to(x.dtype)
    with Noise(NoiseKey(0, "test"), dtype=x.dtype).active():
        out = shift(x).detach()
    with Noise(NoiseKey(0, "test"), dtype=x.dtype).active():
        drawn = 2 * uniform((len(x), 1, 1), like=x) - 1
    return out, x.shape[-1] * shift.reach.detach() * drawn


@pytest.mark.parametrize("outside", OUTSIDE)
def test_it_is_learned_every_way(outside):
    assert_learned_every_way(TimeShift(0.2, outside), shape=(2, 12))


@pytest.mark.parametrize("outside", OUTSIDE)
def test_a_straight_line_is_read_where_it_was(outside):
    """Linear interpolation is exact on it, away from the ends."""
    t = torch.arange(40, dtype=torch.float64)
    x = torch.stack([t, 3 - 2 * t]).expand(9, 2, 40)
    out, delay = shifted(x, 0.2, outside)
    exact = torch.cat([t - delay, 3 - 2 * (t - delay)], 1)
    torch.testing.assert_close(out[..., 9:31], exact[..., 9:31])


def test_outside():
    x = torch.ones(9, 2, 40, dtype=torch.float64)
    assert torch.equal(shifted(x, 0.3, "border")[0], x) and torch.equal(shifted(x, 0.3, "circular")[0], x)
    out, delay = shifted(x, 0.3)
    torch.testing.assert_close(out.sum(-1), (40 - delay.abs()).expand(-1, 2, -1)[..., 0])
    line = torch.arange(40, dtype=torch.float64).expand(9, 1, 40)
    held, delay = shifted(line, 0.3, "border")
    torch.testing.assert_close(held, (line - delay).clamp(0, 39))


def test_around_the_circle():
    x = torch.randn(9, 2, 40, dtype=torch.float64)
    out, delay = shifted(x, 3.0, "circular")
    torch.testing.assert_close(out.sum(-1), x.sum(-1))
    for row in range(9):
        whole = math.floor(delay[row])
        share = delay[row].item() - whole
        exact = (1 - share) * x[row].roll(whole, -1) + share * x[row].roll(whole + 1, -1)
        torch.testing.assert_close(out[row], exact)


def test_reach_0_is_the_identity():
    x = torch.randn(3, 2, 7)
    assert all(torch.equal(shifted(x, 0.0, outside)[0], x) for outside in OUTSIDE)


def test_physical_widths_and_text():
    shift = TimeShift(-0.1)
    assert shift.physical() == {"shift [+-%]": pytest.approx(10)}
    assert shift.widths().tolist() == pytest.approx([0.2])
    assert repr(TimeShift(outside="border")) == "TimeShift(outside=border)"
