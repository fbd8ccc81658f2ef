"""Soft boxes: in the limit an interval, at width 0 nothing."""

import pytest
import torch

from fedpart.nn.hyperparameters.stripes import soft_box

CENTRE = torch.tensor([[0.3], [0.5], [1.0]], dtype=torch.float64)


def box(width, softness=0.5, length=200):
    return soft_box(length, CENTRE, torch.tensor(width, dtype=torch.float64), softness)


def test_hard_edges_are_an_interval():
    places = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
    inside = (places - CENTRE).abs() < 0.1
    torch.testing.assert_close(box(0.2, 1e-3), inside.double())


def test_width_0_is_nothing_and_the_box_is_odd_in_it():
    assert not box(0.0).any()
    torch.testing.assert_close(box(-0.2), -box(0.2))


def test_what_is_masked_is_as_much_as_the_width():
    """The sum over a long axis, edges included: the integral of the difference of two sigmoids."""
    for softness in (0.5, 3.0):
        taken = box(0.2, softness)[:2].sum(1)
        torch.testing.assert_close(taken, torch.full_like(taken, 40.0), rtol=1e-6, atol=0)


def test_edges_rise_within_4_4_places():
    edge = torch.special.logit(torch.tensor(0.9)) - torch.special.logit(torch.tensor(0.1))
    assert edge.item() == pytest.approx(4.4, abs=0.01)
