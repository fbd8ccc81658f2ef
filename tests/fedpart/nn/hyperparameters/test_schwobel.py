"""Schwobel's product of an affine map, its family with free ends, and the one around the identity."""

import math

import pytest
import torch

from fedpart import AffineAugmentation
from fedpart.nn.hyperparameters.affine import minmax_matrix, schwobel_matrix, warp
from fedpart.randomness.noise import Noise, NoiseKey, uniform

IDENTITY = (0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
NAMES = AffineAugmentation.components["schwobel"]


def draws(n=20):
    """``[n, 7]`` components, none of them near 0 where a scale would be."""
    u = torch.rand(n, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    return torch.tensor(IDENTITY, dtype=torch.float64) + u


def drawn(transform):
    with Noise(NoiseKey(0, "test")).active():
        return transform.sample(50)


def test_it_is_the_product():
    for row, matrix in zip(draws(), schwobel_matrix(draws()), strict=True):
        angle, sx, sy, hx, hy, px, py = row.tolist()
        rotation = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        factors = (rotation, [[1, hx], [hy, 1 + hx * hy]], [[sx, 0], [0, sy]])
        a = torch.linalg.multi_dot([torch.tensor(m, dtype=torch.float64) for m in factors])
        p = torch.tensor([[px], [py]], dtype=torch.float64)
        torch.testing.assert_close(matrix, torch.cat([a, -a @ p], dim=1))


def test_the_determinant_is_that_of_the_scales():
    theta = draws()
    found = torch.linalg.det(schwobel_matrix(theta)[:, :, :2])
    torch.testing.assert_close(found, theta[:, 1] * theta[:, 2])


def test_the_inverse_undoes_it():
    """In closed form: scales, shears and turn undone one by one; the shift is the point that goes to 0."""
    theta = draws()
    angle, sx, sy, hx, hy = theta.unbind(-1)[:5]
    inverse = torch.stack([(1 + hx * hy) / sx, -hx / sx, -hy / sy, 1 / sy], dim=1).view(-1, 2, 2)
    cos, sin = angle.cos(), angle.sin()
    back = inverse @ torch.stack([cos, sin, -sin, cos], dim=1).view(-1, 2, 2)
    a, shift = schwobel_matrix(theta).split([2, 1], dim=2)
    torch.testing.assert_close(back @ a, torch.eye(2, dtype=torch.float64).expand(20, 2, 2))
    torch.testing.assert_close(-back @ shift, theta[:, 5:, None])


def test_it_agrees_with_minmax_without_shear_y_and_shift():
    theta = draws()
    theta[:, 4:] = 0
    torch.testing.assert_close(schwobel_matrix(theta), minmax_matrix(theta), rtol=0, atol=1e-15)
    theta[:, 4] = 0.2
    assert not torch.allclose(schwobel_matrix(theta), minmax_matrix(theta))


@pytest.mark.parametrize("family", ["schwobel", "symmetric"])
def test_the_families_draw_from_that_product(family):
    half = [0.5, 0.1, 0.2, 0.3, 0.2, 0.1, 0.4]
    transform, other = AffineAugmentation(family, half), AffineAugmentation("minmax", half)
    low, high = other.range
    with Noise(NoiseKey(0, "test")).active():
        u = uniform((50, 7), like=transform.range)
    torch.testing.assert_close(drawn(transform), schwobel_matrix(low + (high - low) * u))
    torch.testing.assert_close(transform.widths(), other.widths())
    assert transform.physical() == pytest.approx(other.physical())


def test_what_each_family_learns():
    x = torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for family, shape in (("schwobel", (2, 7)), ("symmetric", (7,))):
        transform = AffineAugmentation(family, 0.1)
        warp(x, drawn(transform)).square().sum().backward()
        assert transform.range.grad.shape == shape and (transform.range.grad != 0).all()


def test_around_the_identity_no_step_moves_the_centre():
    transform = AffineAugmentation("symmetric", 0.1)
    with torch.no_grad():
        transform.range.add_(torch.linspace(-0.05, 0.3, 7))
    values, centres = transform.physical(), []
    for name in NAMES:
        low, high = (v for key, v in values.items() if key.startswith(name))
        centres.append((low + high) / 2)
    assert centres == pytest.approx(IDENTITY, abs=1e-5)
