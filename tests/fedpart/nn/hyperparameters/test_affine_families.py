"""Schwobel's product and the families that use it; what is said where a centre leaves the identity."""

import math
import warnings

import pytest
import torch
from draws import alike
from torch import nn

from fedpart import AffineAugmentation, Task, federate, fit
from fedpart.nn.hyperparameters.affine import minmax_matrix, schwobel_matrix
from fedpart.randomness.noise import uniform
from fedpart.training.result import remarks_on

IDENTITY = (0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
NAMES = AffineAugmentation.components["schwobel"]


def draws(n=20):
    """``[n, 7]`` components, none of them near 0 where a scale would be."""
    u = torch.rand(n, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    return torch.tensor(IDENTITY, dtype=torch.float64) + u


def test_it_is_the_product():
    for row, matrix in zip(draws(), schwobel_matrix(draws()), strict=True):
        angle, sx, sy, hx, hy, px, py = row.tolist()
        rotation = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        factors = (rotation, [[1, hx], [hy, 1 + hx * hy]], [[sx, 0], [0, sy]])
        a = torch.linalg.multi_dot([torch.tensor(m, dtype=torch.float64) for m in factors])
        p = torch.tensor([[px], [py]], dtype=torch.float64)
        torch.testing.assert_close(matrix, torch.cat([a, -a @ p], dim=1))


@pytest.mark.parametrize("family", ["minmax", "schwobel", "symmetric"])
def test_the_families_draw_from_their_product(family):
    product = minmax_matrix if family == "minmax" else schwobel_matrix
    half = [0.5, 0.1, 0.2, 0.3, 0.2, 0.1, 0.4]
    transform, other = AffineAugmentation(family, half), AffineAugmentation("minmax", half)
    low, high = other.range
    u = alike(lambda: uniform((50, 7), like=transform.range))
    torch.testing.assert_close(alike(lambda: transform.sample(50)), product(low + (high - low) * u))
    torch.testing.assert_close(transform.widths(), other.widths())
    assert transform.physical() == pytest.approx(other.physical())


def test_around_the_identity_no_step_moves_the_centre():
    transform = AffineAugmentation("symmetric", 0.1)
    with torch.no_grad():
        transform.range.add_(torch.linspace(-0.05, 0.3, 7))
    values, centres = transform.physical(), []
    for name in NAMES:
        low, high = (v for key, v in values.items() if key.startswith(name))
        centres.append((low + high) / 2)
    assert centres == pytest.approx(IDENTITY, abs=1e-5)


FREE = ["minmax", "centred", "schwobel"]


def moved(family, name, centre, half):
    """Of free centres: one component around ``centre``, the others within 0.02 of the identity."""
    transform = AffineAugmentation(family, 0.02)
    place = transform.components[family].index(name)
    ends = (centre, half) if family == "centred" else (centre - half, centre + half)
    with torch.no_grad():
        transform.range[:, place] = torch.tensor(ends)
    return transform


def remarks(transform):
    return transform.remarks(transform.physical())


@pytest.mark.parametrize("family", FREE)
@pytest.mark.parametrize(
    ("name", "centre", "half", "said"),
    [
        ("angle", math.radians(14), math.radians(1), "angle [deg] 13.00 to 15.00"),
        ("angle", math.radians(-14), math.radians(1), "angle [deg] -15.00 to -13.00"),
        ("scale_y", 1.3, 0.01, "scale_y 1.29 to 1.31"),
        ("scale_y", 0.5, 0.4, "scale_y 0.10 to 0.90"),
        ("shear_x", -0.35, 0.05, "shear_x -0.40 to -0.30"),
        ("shift_y", 0.2, 0.1, "shift_y [%] 5.00 to 15.00"),
    ],
)
def test_a_centre_beyond_its_half_width(family, name, centre, half, said):
    (found,) = remarks(moved(family, name, centre, half))
    assert f"half-widths: {said}. " in found
    assert "symmetric, such as lila" in found


def test_centres_within_their_half_width_and_symmetric_families_have_nothing_to_say():
    for family in FREE:
        assert remarks(moved(family, "angle", 0.3, 0.31)) == []
        assert remarks(moved(family, "scale_x", 1.3, -0.31)) == []  # turned over: the same range
    for family in ("symmetric", "augerino", "lila"):
        for value in (-0.7, 0.0, 1e-3, 0.7, 5.0):
            assert remarks(AffineAugmentation(family, value)) == []


def of(transform):
    return Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), transforms={"aug": transform}, samples=1)


@pytest.mark.parametrize("learn", ["federate", "fit"])
def test_python_is_warned_once(learn):
    data = torch.rand(8, 1, 8, 8), torch.arange(8) % 2

    def run(transform):
        if learn == "fit":
            return fit(of(transform), data, chunks=(0.5, 0.5), iterations=2, batch_size=2)
        return federate(of(transform), [data, data], method="partitioned", chunks=(0.5, 0.5), rounds=2)

    with pytest.warns(RuntimeWarning, match=r"^aug: Learned ranges leave out .*scale_y 1\.\d* to") as caught:
        result = run(moved("centred", "scale_y", 1.3, 0.01))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert [str(caught[0].message)] == remarks_on(result.state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(AffineAugmentation("lila", 0.05))
