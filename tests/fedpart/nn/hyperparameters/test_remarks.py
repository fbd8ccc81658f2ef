"""A centre that has left the identity by more than its half-width is said, once, with what to do."""

import math
import warnings

import pytest
import torch
from torch import nn

from fedpart import AffineAugmentation, Task, federate, fit
from fedpart.training.result import remarks_on

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


@pytest.mark.parametrize("family", FREE)
def test_a_centre_within_its_half_width(family):
    assert remarks(moved(family, "angle", 0.3, 0.31)) == []
    assert remarks(moved(family, "scale_x", 1.3, -0.31)) == []  # turned over: the same range


@pytest.mark.parametrize("family", ["symmetric", "augerino", "lila"])
@pytest.mark.parametrize("value", [-0.7, 0.0, 1e-3, 0.7, 5.0])
def test_symmetric_families_have_nothing_to_say(family, value):
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
