"""What is cut out, masked and shifted: where it lies, how much it takes, and the gradient."""

import math

import pytest
import torch
from draws import alike
from every_way import assert_learned_every_way

from fedpart import (
    ColourJitter,
    ConcreteDropout,
    ConcreteMask,
    Cutout,
    FixedMask,
    FrequencyMask,
    GaussianBlur,
    InputNoise,
    RandomFlip,
    TimeMask,
    TimeShift,
    TokenDropout,
    uniform,
)

OUTSIDE = ("zeros", "border", "circular")
MASKS = {TimeMask: -1, FrequencyMask: -2}
LEARNED = [
    (Cutout(0.5), (3, 6, 6)),
    (GaussianBlur(0.7, 5), (3, 6, 6)),
    (ColourJitter(saturation=None, hue=None), (2, 6, 6)),
    (ColourJitter(), (3, 6, 6)),
    *((RandomFlip(0.4, axis, 0.5), (2, 6, 6)) for axis in ("horizontal", "vertical")),
    (TimeMask(0.5), (7, 9)),
    (FrequencyMask(0.5), (2, 7, 9)),
    *((TimeShift(0.2, outside), (2, 12)) for outside in OUTSIDE),
    (InputNoise(0.2), (2, 6)),
    (ConcreteMask(5, 0.3, 0.5), (5,)),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize("transform, shape", LEARNED, ids=str)
def test_transforms_are_learned_every_way(transform, shape):
    assert_learned_every_way(transform, shape=shape)


def test_noise_is_learned_every_way_as_a_layer():
    assert_learned_every_way(layer=InputNoise(0.2), shape=(3, 6, 6))


def cut(side, shape=(8, 3, 40, 60), softness=0.5):
    """What is left of ones, and the centres of the holes in pixels (down, across)."""
    cutout, x = Cutout(side, softness), torch.ones(shape)
    out, centres = alike(lambda: cutout(x).detach(), lambda: uniform((shape[0], 2), like=x))
    return out, centres * torch.tensor(shape[2:])


def test_hard_edges_cut_a_square():
    """Of 0.3 times the shorter side, 40 pixels: 12 pixels down and across, in all channels."""
    out, centres = cut(0.3, softness=1e-4)
    down = (torch.arange(40) + 0.5 - centres[:, :1]).abs() < 6
    across = (torch.arange(60) + 0.5 - centres[:, 1:]).abs() < 6
    hole = (down[:, :, None] & across[:, None, :])[:, None].expand(-1, 3, -1, -1)
    torch.testing.assert_close(out, 1 - hole.float())


def test_soft_edges_of_a_square_take_as_much():
    out, centres = cut(0.3)
    torch.testing.assert_close(cut(-0.3)[0], out)  # the sign of a side is nothing
    inside = ((centres > 10) & (centres < torch.tensor([30, 50]))).all(1)
    assert inside.any()
    taken = (1 - out[inside]).sum((2, 3))
    torch.testing.assert_close(taken, torch.full_like(taken, 144.0), rtol=1e-3, atol=0)


def test_the_gradient_is_minus_what_the_edges_would_take():
    """The sum falls by twice the side (in pixels) for every pixel that the side grows."""
    cutout = Cutout(0.3)
    x = torch.ones(200, 1, 40, 40)
    out, centres = alike(lambda: cutout(x), lambda: 40 * uniform((200, 2), like=x))
    inside = ((centres > 10) & (centres < 30)).all(1)
    (slope,) = torch.autograd.grad(out[inside].sum() / inside.sum(), cutout.side)
    assert slope.item() == pytest.approx(-2 * 12 * 40, rel=1e-2)


def masked(mask, x):
    """``x`` after it, and the start and width of each row's stripe as fractions of the axis."""
    out, drawn = alike(lambda: mask(x).detach(), lambda: uniform((len(x), 2), like=x))
    width, place = drawn.unbind(1)
    width = width * mask.width.detach().abs()
    return out, place * (1 - width).clamp(min=0), width


@pytest.mark.parametrize("mask, shape", [(TimeMask, (30, 50)), (FrequencyMask, (2, 30, 50))])
def test_hard_edges_take_a_stripe(mask, shape):
    axis = MASKS[mask]
    x = torch.rand(20, *shape) + 1
    out, start, width = masked(mask(0.4, softness=1e-4), x)
    places = ((torch.arange(shape[axis]) + 0.5) / shape[axis]).view(-1, *[1] * (-1 - axis))
    start, width = (of.view(-1, *[1] * len(shape)) for of in (start, width))
    kept = (places < start) | (places > start + width)
    torch.testing.assert_close(out, x * kept)
    assert (out == 0).any() and (start >= 0).all() and (start + width <= 1).all()


@pytest.mark.parametrize("mask, softness", [(TimeMask, 0.5), (FrequencyMask, 3.0)])
def test_soft_edges_take_as_much(mask, softness):
    x = torch.ones(200, 100, 100)
    out, start, width = masked(mask(0.4, softness), x)
    inside = (start > 0.3) & (start + width < 0.7)
    assert inside.any()
    torch.testing.assert_close((1 - out).sum((1, 2))[inside], 100 * 100 * width[inside], rtol=1e-3, atol=0.1)
    torch.testing.assert_close(masked(mask(-0.4, softness), x)[0], out)  # the sign is nothing
    out, _, width = masked(mask(5.0), x[:, :30, :40])
    assert (width > 1.2).any() and out[width > 1.2][:, 2:, 2:].abs().max() < 0.1, "more than all is all"


@pytest.mark.parametrize(
    "transform", [Cutout(0.0), TimeMask(0.0), *(TimeShift(0.0, outside) for outside in OUTSIDE)], ids=str
)
def test_nothing_is_the_identity(transform):
    x = torch.randn(3, 2, 7, 9) if isinstance(transform, Cutout) else torch.randn(3, 2, 7)
    assert torch.equal(transform(x), x)


@pytest.mark.parametrize(
    "module, physical, widths, text",
    [
        (GaussianBlur(-0.5, 5), {"largest sigma [pixels]": 0.5}, [0.5], "kernel_size=5"),
        (
            ColourJitter(-0.2, None, 0.3, 0.1),
            {"brightness [+-%]": 20, "saturation [+-%]": 30, "hue [+-deg]": 36},
            [0.4, 0.6, 0.2],
            "brightness, saturation, hue",
        ),
        (Cutout(-0.25, 2.0), {"side [%]": 25}, None, "softness=2.0"),
        (RandomFlip(0.3, "vertical"), {"vertical [%]": 30}, None, "axis=vertical, temperature=0.1"),
        (TimeMask(-0.2), {"largest width [%]": 20}, [0.2], "softness=0.5"),
        (FrequencyMask(softness=1.5), {"largest width [%]": 10}, [0.1], "softness=1.5"),
        (TimeShift(-0.1, "border"), {"shift [+-%]": 10}, [0.2], "outside=border"),
        (ConcreteDropout(0.1), {"rate [%]": 10}, None, "temperature=0.1"),
        (TokenDropout(0.4), {"rate [%]": 40}, None, "temperature=0.1"),
        (InputNoise(0.3), {"std": 0.3}, None, ""),
        (ConcreteMask(2, 0.2), {"keep[0] [%]": 20, "keep[1] [%]": 20}, None, "features=2, temperature=0.1"),
        (FixedMask(3, 2), {}, None, "features=3, kept=2"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_people_read(module, physical, widths, text):
    assert module.physical() == pytest.approx(physical, abs=1e-4)
    assert module.widths() is None if widths is None else module.widths().tolist() == pytest.approx(widths)
    assert repr(module) == f"{type(module).__name__}({text})"


def shifted(x, reach, outside="zeros"):
    """``x`` after it, and each row's delay in places, ``[rows, 1, 1]``."""
    shift = TimeShift(reach, outside).to(x.dtype)
    calls = lambda: shift(x).detach(), lambda: 2 * uniform((len(x), 1, 1), like=x) - 1
    out, drawn = alike(*calls, dtype=x.dtype)
    return out, x.shape[-1] * shift.reach.detach() * drawn


@pytest.mark.parametrize("outside", OUTSIDE)
def test_a_straight_line_is_read_where_it_was(outside):
    """Linear interpolation is exact on it, away from the ends."""
    t = torch.arange(40, dtype=torch.float64)
    x = torch.stack([t, 3 - 2 * t]).expand(9, 2, 40)
    out, delay = shifted(x, 0.2, outside)
    exact = torch.cat([t - delay, 3 - 2 * (t - delay)], 1)
    torch.testing.assert_close(out[..., 9:31], exact[..., 9:31])


def test_outside_and_around_the_circle():
    x = torch.ones(9, 2, 40, dtype=torch.float64)
    assert torch.equal(shifted(x, 0.3, "border")[0], x)
    out, delay = shifted(x, 0.3)
    torch.testing.assert_close(out.sum(-1), (40 - delay.abs()).expand(-1, 2, -1)[..., 0])
    line = torch.arange(40, dtype=torch.float64).expand(9, 1, 40)
    held, delay = shifted(line, 0.3, "border")
    torch.testing.assert_close(held, (line - delay).clamp(0, 39))
    x = torch.randn(9, 2, 40, dtype=torch.float64)
    out, delay = shifted(x, 3.0, "circular")
    for row in range(9):
        whole = math.floor(delay[row])
        share = delay[row].item() - whole
        exact = (1 - share) * x[row].roll(whole, -1) + share * x[row].roll(whole + 1, -1)
        torch.testing.assert_close(out[row], exact)
