"""What defences make of a few vectors: closed forms, invariants, hostile clients, and Flower's own."""

import itertools
import math

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum

from fedpart.updates.defences import DEFENCES

CASES = [(name, {}) for name in DEFENCES.names()]
CASES += [("trim", {"share": 0.1}), ("krum", {"share": 0.1}), ("centred", {"reach": 3.0})]


def vectors(n, size=50, seed=0):
    return list(torch.randn(n, size, generator=torch.Generator().manual_seed(seed)))


def combined(name, values, memory=None, **options):
    return DEFENCES.make(name, options).combine(values, memory)


def test_the_median_of_an_odd_and_an_even_number():
    values = [torch.tensor([1.0, 9.0]), torch.tensor([5.0, 2.0]), torch.tensor([1e14, -1e14])]
    assert combined("median", values).tolist() == [5.0, 2.0]
    assert combined("median", [*values, torch.tensor([3.0, 4.0])]).tolist() == [4.0, 3.0]


@pytest.mark.parametrize(
    ("n", "share", "left_out"), [(1, 0.1, 0), (2, 0.4, 0), (3, 0.1, 1), (10, 0.2, 2), (11, 0.2, 3)]
)
def test_the_trimmed_mean_by_hand(n, share, left_out):
    values = vectors(n)
    expected = torch.stack(values).sort(dim=0).values[left_out : n - left_out].mean(dim=0)
    torch.testing.assert_close(combined("trim", values, share=share), expected)


def test_the_geometric_median_of_points_on_a_line_of_a_triangle_and_of_most_that_agree():
    direction = torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for places in ([0.0, 1.0, 5.0], [-3.0, 0.0, 0.5, 7.0, 1000.0]):
        values = [2.0 + place * direction for place in places]
        found = combined("geometric", values)
        torch.testing.assert_close(found, values[len(places) // 2], rtol=0, atol=1e-4)
    corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    point = combined("geometric", list(corners))
    towards = corners - point
    towards /= towards.norm(dim=1, keepdim=True)
    assert towards.sum(dim=0).norm().item() < 1e-6
    point, others = torch.randn(5), vectors(2, 5)
    torch.testing.assert_close(combined("geometric", [others[0], point, point, others[1], point]), point)
    assert combined("geometric", [point, point]).equal(point)


def test_krum_takes_those_that_are_close_together_whom_flower_takes():
    dense = [torch.tensor([1.0, 1.0]) + 0.01 * one for one in vectors(7, 2)]
    far = [torch.tensor(place) for place in ([9.0, -9.0], [-30.0, 2.0], [0.0, 50.0])]
    values = [*dense[:4], far[0], *dense[4:], *far[1:]]
    found = combined("krum", values, share=0.3)
    assert math.dist(found, torch.stack(dense).mean(dim=0)) < 0.02
    torch.testing.assert_close(combined("krum", values[:6], share=0.3), combined("median", values[:6]))
    values = vectors(9, 30, 4)
    records = [RecordDict({"arrays": ArrayRecord([one.numpy()])}) for one in values]
    chosen = select_multikrum(records, num_malicious_nodes=2, num_nodes_to_select=5)
    arrays = [record["arrays"].to_numpy_ndarrays()[0] for record in chosen]
    expected = torch.from_numpy(np.mean(arrays, axis=0))
    torch.testing.assert_close(combined("krum", values, share=0.2), expected)


@pytest.mark.parametrize("memory", [None, torch.linspace(-1, 1, 50)])
def test_centred_clipping_of_any_length_is_the_mean_to_the_bit(memory):
    values = vectors(7)
    total = torch.zeros(50)
    for one in values:
        total += one
    assert combined("centred", values, memory, radius=math.inf).equal(total / 7)


def test_centred_clipping_by_hand_within_reach_of_an_average_over_rounds():
    values = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 10.0]), torch.tensor([-0.5, 0.0])]
    expected = torch.tensor([(1.0 + 0.0 - 0.5) / 3, 1.0 / 3])
    torch.testing.assert_close(combined("centred", values, radius=1.0), expected)
    centre = torch.tensor([3.0, 8.0])  # distances 8, sqrt(13), sqrt(76.25)
    drawn = [centre + (one - centre) * min(1, 8 / (one - centre).norm()) for one in values]
    torch.testing.assert_close(combined("centred", values, centre), torch.stack(drawn).mean(dim=0))
    values = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.5]), torch.tensor([-4.0, 0.0])]
    near = combined("centred", values[:2], radius=1.0)
    torch.testing.assert_close(combined("centred", values, radius=1.0, reach=3.0), near)
    assert not combined("centred", values, radius=1.0, reach=5.0).allclose(near)
    centre = torch.tensor([100.0, 100.0])
    assert combined("centred", values, centre, radius=1.0, reach=3.0).equal(centre)
    defence, first, second = DEFENCES.make("centred", {"momentum": 0.75}), *vectors(2)
    centre = defence.remembered(first, None)
    torch.testing.assert_close(centre, first / 4)
    torch.testing.assert_close(defence.remembered(second, centre), 0.75 * first / 4 + second / 4)


def wrong(holds, *counts):
    """The cases for which ``holds(name, options, values)`` is false, of so many clients."""
    cases = itertools.product(CASES, counts)
    return [(name, options, n) for (name, options), n in cases if not holds(name, options, vectors(n))]


def test_order_does_not_matter_what_all_have_in_common_is_kept_and_what_is_given_stays():
    def same(name, options, values):
        order = torch.randperm(len(values), generator=torch.Generator().manual_seed(5)).tolist()
        permuted = combined(name, [values[i] for i in order], **options)
        return torch.allclose(combined(name, values, **options), permuted, rtol=1.3e-6, atol=1e-5)

    assert not wrong(same, 1, 2, 3, 4, 7, 10)

    def moved(name, options, values):
        more = 3 * torch.ones(50)
        memory, shifted = (torch.zeros(50), more) if name == "centred" else (None, None)
        together = combined(name, [value + more for value in values], shifted, **options)
        alone = combined(name, values, memory, **options)
        return torch.allclose(together, alone + more, rtol=1e-4, atol=1e-4)

    assert not wrong(moved, 1, 3, 6, 10)

    def stays(name, options, values):
        before = [value.clone() for value in values]
        combined(name, values, **options).add_(1)
        return all(map(torch.equal, values, before))

    assert not wrong(stays, 1, 2, 7)


def moved_by(defence, n, lie):
    """How far as many liars as ``defence`` bears among ``n`` clients move it, in spreads of the honest."""
    values = vectors(n, 40, n)
    for place in range(defence.bears(n)):
        values[place * 2 % n] = torch.full((40,), lie)
    honest = torch.stack([value for value in values if value[0] != lie])
    mean = honest.mean(dim=0)
    spread = max((honest - mean).norm(dim=1).max().item(), honest.norm(dim=1).max().item())
    return (defence.combine(values, None) - mean).norm().item() / spread


def test_as_many_hostile_clients_as_are_borne_do_not_move_it_far():
    """The result stays within the honest clients' own spread of their mean, wherever the liars stand."""
    for (name, options), n, lie in itertools.product(CASES, range(1, 21), [1e15, -1e6, 30.0]):
        defence = DEFENCES.make(name, options)
        enough = n < 3 or defence.bears(n) >= math.ceil(0.1 * n)
        assert enough and defence.bears(n) <= (n - 1) // 2, (name, options, n)
        assert moved_by(defence, n, lie) <= 2.5, (name, options, n, lie)


@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_large_vectors_are_taken_in_pieces(name, options):
    """In pieces of 65,536 numbers; the last one holds three."""
    values = vectors(7, 2 * 65_536 + 3)
    result, last = combined(name, values, **options), [value[-3:] for value in values]
    assert result.shape == values[0].shape and result.isfinite().all()
    if DEFENCES.make(name, options).by_coordinate:
        assert result[-3:].equal(combined(name, last, **options))
