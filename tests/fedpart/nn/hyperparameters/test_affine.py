"""Affine families against closed forms, sampling, units."""

import itertools
import math

import pytest
import torch
from draws import alike
from torch.nn import functional as F

from fedpart import AffineAugmentation
from fedpart.nn.hyperparameters.affine import generator_matrix, minmax_matrix, warp
from fedpart.randomness.noise import uniform

IDENTITY = (0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
TIGHT = {"rtol": 0, "atol": 1e-10}


def images(height=8, width=8):
    return torch.rand(3, 2, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def theta(**components):
    names = AffineAugmentation.components["minmax"]
    values = dict(zip(names, IDENTITY, strict=True)) | components
    return torch.tensor([[values[name] for name in names]] * 3, dtype=torch.float64)


def coefficients(**components):
    names = AffineAugmentation.components["augerino"]
    return torch.tensor([[components.get(name, 0.0) for name in names]] * 3, dtype=torch.float64)


def at(family, align_corners=True, **components):
    minmax = family == "minmax"
    matrix = minmax_matrix(theta(**components)) if minmax else generator_matrix(coefficients(**components))
    return lambda x: warp(x, matrix, align_corners=align_corners)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("family", ["minmax", "augerino"])
@pytest.mark.parametrize("quarter", [1, 2, -1])
def test_quarter_turns(family, align_corners, quarter):
    """A positive angle turns the picture counter-clockwise, as torch.rot90 does."""
    x = images()
    turned = at(family, align_corners, angle=quarter * math.pi / 2)(x)
    torch.testing.assert_close(turned, torch.rot90(x, quarter, (2, 3)), **TIGHT)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("family", ["minmax", "augerino"])
@pytest.mark.parametrize("size", [(8, 8), (6, 11)])
def test_one_pixel_shift(family, align_corners, size):
    """A positive shift reads further right (below): the picture moves left (up), and zeros follow."""
    x = images(*size)
    spans = [n - 1 if align_corners else n for n in size]
    right = at(family, align_corners, shift_x=2 / spans[1])(x)
    torch.testing.assert_close(right, F.pad(x, (0, 1))[..., 1:], **TIGHT)
    down = at(family, align_corners, shift_y=2 / spans[0])(x)
    torch.testing.assert_close(down, F.pad(x, (0, 0, 0, 1))[..., 1:, :], **TIGHT)


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


def test_generator_matrix_is_the_exponential_of_the_generators():
    generators = torch.zeros(6, 3, 3, dtype=torch.float64)
    generators[0, 0, 2] = 1  # shift x
    generators[1, 1, 2] = 1  # shift y
    generators[2, 0, 1], generators[2, 1, 0] = -1, 1  # rotation
    generators[3, 0, 0], generators[3, 1, 1] = 1, 1  # isotropic scale
    generators[4, 0, 0], generators[4, 1, 1] = 1, -1  # stretch
    generators[5, 0, 1], generators[5, 1, 0] = 1, 1  # symmetric shear
    draws = torch.randn(20, 6, dtype=torch.float64)
    expected = torch.matrix_exp(torch.einsum("ni,ijk->njk", draws, generators))
    torch.testing.assert_close(generator_matrix(draws), expected[:, :2])


@pytest.mark.parametrize("family", ["minmax", "centred"])
def test_a_range_that_has_turned_over_is_read_in_order(family):
    values = AffineAugmentation(family, -0.1).physical()
    assert (values["scale_x_min"], values["scale_x_max"]) == pytest.approx((0.9, 1.1))


def test_augerino_samples_lie_within_half_the_width():
    raw = torch.full((6,), -1e3)
    raw[0], raw[2] = 1.0, 0.5
    transform = AffineAugmentation("augerino", raw.tolist())
    widths = F.softplus(raw)
    matrices = alike(lambda: transform.sample(4000))
    angles = torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0])
    assert 0.98 * widths[2] / 2 < angles.abs().max() <= widths[2] / 2 + 1e-6
    assert angles.mean().abs() < 0.02
    shift = matrices[:, :, 2].norm(dim=1)  # a rotation only bends it
    assert 0.95 * 0.1 * widths[0] / 2 < shift.max() <= 0.1 * widths[0] / 2 + 1e-6


LILA = (
    [[0, 0, 1], [0, 0, 0], [0, 0, 0]],
    [[0, 0, 0], [0, 0, 1], [0, 0, 0]],
    [[0, -1, 0], [1, 0, 0], [0, 0, 0]],
    [[1, 0, 0], [0, 0, 0], [0, 0, 0]],
    [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]],
)


def test_lila_is_the_exponential_of_its_own_generators():
    """U(-p, p) times shifts, rotation, scales along x and y, symmetric shear (Immer et al. 2022)."""
    transform = AffineAugmentation("lila", [0.1, 0.2, 0.9, 0.3, 0.4, 0.5]).double()
    calls = lambda: transform.sample(50).detach(), lambda: uniform((50, 6), like=transform.range)
    found, u = alike(*calls, dtype=torch.float64)
    generators = torch.tensor(LILA, dtype=torch.float64)
    sums = torch.einsum("ni,ijk->njk", transform.range.detach() * (2 * u - 1), generators)
    torch.testing.assert_close(found, torch.linalg.matrix_exp(sums)[:, :2], **TIGHT)


def test_scales_are_factors_in_every_family():
    """A single generator of scale c zooms by e^c."""
    lila = AffineAugmentation("lila", [0.0, 0.0, 0.0, 0.5, 0.2, 0.0])
    values = lila.physical()
    ends_of_x = [values[f"scale_x_{end}"] for end in ("min", "max")]
    assert ends_of_x == pytest.approx([math.exp(-0.5), math.exp(0.5)])
    assert values["scale_y_max"] == pytest.approx(math.exp(0.2)) and values["shear_max"] == 0
    ends = generator_matrix(coefficients(scale=0.35))[0]
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
