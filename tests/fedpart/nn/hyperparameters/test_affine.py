"""Affine families against closed forms, sampling, units."""

import itertools
import math
from contextlib import contextmanager

import pytest
import torch
from draws import alike
from torch.nn import functional as F

from fedpart import AffineAugmentation
from fedpart.nn.hyperparameters import affine
from fedpart.nn.hyperparameters.affine import generator_matrix, minmax_matrix, warp
from fedpart.randomness.noise import uniform

IDENTITY = (0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
TIGHT = {"rtol": 0, "atol": 1e-10}


@contextmanager
def drawn(u):
    """In place of random numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(affine, "uniform", lambda *_, **__: u)
        yield


def images(height=8, width=8):
    return torch.rand(3, 2, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("align_corners", [True, False])
def test_a_positive_angle_turns_counter_clockwise_and_a_positive_shift_moves_left(align_corners):
    """As torch.rot90 does; zeros follow."""
    x, pixel = images(), 2 / (7 if align_corners else 8)
    left = F.pad(x, (0, 1))[..., 1:]
    for angle, shift, expected in ((math.pi / 2, 0, torch.rot90(x, 1, (2, 3))), (0, pixel, left)):
        theta = torch.tensor([[angle, 1, 1, 0, 0, shift, 0]] * 3, dtype=torch.float64)
        moved = warp(x, minmax_matrix(theta), align_corners=align_corners)
        torch.testing.assert_close(moved, expected, **TIGHT)


def test_identity_leaves_images_unchanged(subtests):
    paddings, types = ("zeros", "border", "reflection"), {torch.float32: 1e-5, torch.float64: 1e-12}
    for case in itertools.product(AffineAugmentation.components, (True, False), paddings, types):
        family, align_corners, padding, dtype = case
        initial = -1e3 if family == "augerino" else 0.0  # softplus(-1000) is 0
        transform = AffineAugmentation(family, initial, align_corners, padding).to(dtype)
        x = images(7, 9).to(dtype)
        with subtests.test(str(case)):
            torch.testing.assert_close(transform(x), x, rtol=0, atol=types[dtype])


@pytest.mark.parametrize("height", [2, 5])
def test_grid_is_torchs_own(height):
    x, matrices = images(height, 6), torch.randn(3, 2, 3, dtype=torch.float64)
    for align_corners in (True, False):
        grid = F.affine_grid(matrices, list(x.shape), align_corners=align_corners)
        expected = F.grid_sample(x, grid, align_corners=align_corners)
        torch.testing.assert_close(warp(x, matrices, align_corners=align_corners), expected, **TIGHT)


def test_minmax_matrix_is_the_product():
    draws = torch.randn(20, 7, dtype=torch.float64)
    for row, matrix in zip(draws, minmax_matrix(draws), strict=True):
        angle, sx, sy, hx, hy, tx, ty = row.tolist()
        rotation = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        shear, scale = torch.tensor([[1, hx], [hy, 1]]), torch.diag(torch.tensor([sx, sy]))
        expected = torch.cat([rotation @ shear @ scale, torch.tensor([[tx], [ty]])], dim=1)
        torch.testing.assert_close(matrix.float(), expected, rtol=1e-5, atol=1e-5)


LILA = (
    [[0, 0, 1], [0, 0, 0], [0, 0, 0]],
    [[0, 0, 0], [0, 0, 1], [0, 0, 0]],
    [[0, -1, 0], [1, 0, 0], [0, 0, 0]],
    [[1, 0, 0], [0, 0, 0], [0, 0, 0]],
    [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]],
)


AUGERINO = (*LILA[:3], [[1, 0, 0], [0, 1, 0], [0, 0, 0]], [[1, 0, 0], [0, -1, 0], [0, 0, 0]], LILA[5])


@pytest.mark.parametrize("family, generators", [("augerino", AUGERINO), ("lila", LILA)])
def test_samples_are_exponentials_of_the_familys_generators(family, generators):
    """U(-p, p) times shifts, rotation, scales along x and y, symmetric shear (Immer et al. 2022); of augerino
    scale and stretch, of half the width, and a tenth of that for shifts."""
    transform = AffineAugmentation(family, [0.1, 0.2, 0.9, 0.3, 0.4, 0.5]).double()
    calls = lambda: transform.sample(50).detach(), lambda: uniform((50, 6), like=transform.range)
    found, u = alike(*calls, dtype=torch.float64)
    half = transform.range.detach()
    if family == "augerino":
        half = F.softplus(half) / 2 * half.new_tensor([0.1, 0.1, 1, 1, 1, 1])
    sums = torch.einsum("ni,ijk->njk", half * (2 * u - 1), torch.tensor(generators, dtype=torch.float64))
    torch.testing.assert_close(found, torch.linalg.matrix_exp(sums)[:, :2], **TIGHT)


def test_scales_are_factors_in_every_family():
    """A single generator of scale c zooms by e^c."""
    lila = AffineAugmentation("lila", [0.0, 0.0, 0.0, 0.5, 0.2, 0.0])
    values = lila.physical()
    ends_of_x = [values[f"scale_x_{end}"] for end in ("min", "max")]
    assert ends_of_x == pytest.approx([math.exp(-0.5), math.exp(0.5)])
    assert values["scale_y_max"] == pytest.approx(math.exp(0.2)) and values["shear_max"] == 0
    scale = torch.tensor([[0, 0, 0, 0.35, 0, 0]], dtype=torch.float64)
    ends = generator_matrix(scale)[0]
    torch.testing.assert_close(ends[:, :2], math.exp(0.35) * torch.eye(2, dtype=torch.float64))
    raw = math.log(math.expm1(0.7))  # a width of 0.7
    assert AffineAugmentation("augerino", [raw] * 6).physical()["scale_max"] == pytest.approx(math.exp(0.35))


def test_lila_turns_at_most_all_the_way():
    transform = AffineAugmentation("lila", [0.1, 0.1, 4.0, 0.1, 0.1, 0.1])
    assert transform.widths()[2].item() == pytest.approx(2 * math.pi)
    assert transform.physical()["angle_max [deg]"] == pytest.approx(180)
    transform.widths().sum().backward()
    assert transform.range.grad.tolist() == [2, 2, 0, 2, 2, 2]
    transform = AffineAugmentation("lila", [0.1, 0.1, -4.0, 0.1, 0.1, 0.1])
    assert transform.physical()["angle_max [deg]"] == pytest.approx(180)


@pytest.mark.parametrize("half", [3.5, -3.5, 0.4])
def test_angles_that_come_round_have_a_gradient_beyond_a_half_turn(half):
    """It is that of the images; a width of any size is a distribution, and the bounds end it at a turn."""
    images = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()

    def turned(half):
        torch.manual_seed(0)
        transform = AffineAugmentation("lila", 0.1, wrap=True).double()
        transform.range.data[2] = half
        return transform, transform(images)[..., :4].square().mean()

    transform, value = turned(half)
    value.backward()
    numeric = (turned(half + 1e-6)[1] - turned(half - 1e-6)[1]).item() / 2e-6
    assert abs(numeric) > 1e-4 and transform.range.grad[2].item() == pytest.approx(numeric, rel=1e-3)
    assert transform.bounds()["range"][1][2].item() == pytest.approx(2 * math.pi)
    assert "wrap" in repr(transform) and "wrap" not in repr(AffineAugmentation("lila"))


def test_physical_units():
    values = AffineAugmentation("minmax", [math.pi / 2, 0.1, 0.1, 0.2, 0.0, 0.5, 0.0]).physical()
    assert values["angle_min [deg]"] == pytest.approx(-90) and values["angle_max [deg]"] == pytest.approx(90)
    assert values["scale_x_min"] == pytest.approx(0.9) and values["scale_x_max"] == pytest.approx(1.1)
    assert values["shift_x_max [%]"] == pytest.approx(25)  # half of the half image
    assert len(values) == 14
    for family in ("minmax", "centred"):  # a range that has turned over is read in order
        values = AffineAugmentation(family, -0.1).physical()
        assert (values["scale_x_min"], values["scale_x_max"]) == pytest.approx((0.9, 1.1))
    raw = math.log(math.expm1(math.pi))  # a width of pi
    values = AffineAugmentation("augerino", [raw] * 6).physical()
    assert values["angle_min [deg]"] == pytest.approx(-90) and values["angle_max [deg]"] == pytest.approx(90)
    assert values["shift_y_max [%]"] == pytest.approx(0.1 * math.pi / 2 * 50)
    assert values["stretch_max"] == pytest.approx(math.pi / 2)


def test_where_ranges_start():
    torch.testing.assert_close(AffineAugmentation().widths(), torch.full((6,), 0.04))
    torch.testing.assert_close(AffineAugmentation("augerino").widths(), torch.full((6,), math.log(2)))
    assert AffineAugmentation("minmax", 1).range.dtype == torch.float32
    assert AffineAugmentation("minmax").range.numel() == 14
    assert AffineAugmentation("augerino").range.numel() == 6
    named = AffineAugmentation("lila", {"angle": 3.0, "shear": 0.5}).range
    torch.testing.assert_close(named, torch.tensor([0.02, 0.02, 3.0, 0.02, 0.02, 0.5]))


def test_centred_coordinates_describe_the_same_distribution():
    minmax, centred = AffineAugmentation("minmax", 0.3), AffineAugmentation("centred", 0.3)
    torch.testing.assert_close(centred.range, torch.tensor([IDENTITY, [0.3] * 7]))
    with torch.no_grad():  # move the centres, widen the ranges
        low, high = minmax.range[0] - 0.1, minmax.range[1] + 0.3
        minmax.range.copy_(torch.stack([low, high]))
        centred.range.copy_(torch.stack([(low + high) / 2, (high - low) / 2]))
    torch.testing.assert_close(*alike(lambda: centred.sample(50), lambda: minmax.sample(50)))
    assert centred.physical() == pytest.approx(minmax.physical(), rel=1e-5)
    torch.testing.assert_close(centred.widths(), minmax.widths())


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("family", ["lila", "minmax", "schwobel", "augerino"])
@pytest.mark.parametrize(("height", "width"), [(25, 49), (49, 25)])
def test_maps_of_images_that_are_not_square_turn_pixels(family, height, width, align_corners):
    """They are those of the square image around it, whose shifts are the same pixels."""
    transform = AffineAugmentation(family, align_corners=align_corners)
    bar = torch.zeros(32, 1, height, width)
    bar[:, :, height // 2 - 1 : height // 2 + 2, width // 2 - 6 : width // 2 + 7] = 1
    side = max(height, width)
    margins = [(side - width) // 2] * 2 + [(side - height) // 2] * 2
    names, less = transform.components[family], 1 - align_corners
    spans = {
        "shift_x": (width - 1 + less) / (side - 1 + less),
        "shift_y": (height - 1 + less) / (side - 1 + less),
    }
    u = torch.rand(32, len(names))
    with torch.no_grad():
        transform.range.add_(torch.tensor([{"angle": 0.7, "shear": 0.2}.get(name, 0.1) for name in names]))
        with drawn(u):
            turned = transform(bar)
        for place, name in enumerate(names):  # in halves of the square's side
            if family == "augerino":  # whose widths are no multiples of psi
                u[:, place] = (u[:, place] - 0.5) * spans.get(name, 1.0) + 0.5
            else:
                transform.range[..., place] *= spans.get(name, 1.0)
        with drawn(u):
            square = transform(F.pad(bar, margins))
    window = square[:, :, margins[2] : side - margins[2], margins[0] : side - margins[0]]
    inner = (slice(None), slice(None), slice(1, -1), slice(1, -1))  # the square has more beyond an edge
    assert (turned - window)[inner].abs().max() < 2e-3 and turned.std() > 0.1


def test_coordinates_keep_their_digits_in_16_bits():
    x, transform = torch.rand(2, 3, 224, 224), AffineAugmentation("lila", 1e-6)
    with torch.autocast("cpu", torch.bfloat16):  # as a layer of a network under precision: bf16
        assert (transform(x) - x).abs().max() < 1e-3
    transform, u = AffineAugmentation("lila", 0.2), torch.rand(2, 6)
    for dtype in (torch.float16, torch.bfloat16):
        with drawn(u):
            turned, exact = transform(x.to(dtype)), transform(x.to(dtype).float())
        assert turned.dtype == dtype and (turned - exact).abs().max() <= torch.finfo(dtype).eps
