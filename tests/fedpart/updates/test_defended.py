"""Defended sums: each partition over its own contributors, buckets, and what is remembered and resumed."""

from itertools import pairwise

import pytest
import torch
from problems import after, assert_same, augmentation, chain_net, settings, shards, update_of

from fedpart import Federation, Protocol, Task
from fedpart.federated.cohorts import CohortSum
from fedpart.randomness.streams import generator
from fedpart.updates.defences import DEFENCES
from fedpart.updates.stages import RobustSum, UsualBounds
from fedpart.updates.stages.robust import Defended
from fedpart.updates.update import PSI, UNIT, Bound


def made(name, bucket=1, seed=0, **options):
    return Defended(DEFENCES.make(name, options), bucket, seed)


def test_each_partition_and_psi_over_those_who_sent_it():
    g = torch.Generator().manual_seed(0)
    values = torch.randn(9, 4, generator=g)

    def sent(i, row):
        deltas = {1: row.clone(), 2: row[:3] + 1} if i < 5 else {2: row[:3] + 1}
        return update_of(deltas, None if i < 6 else row[:2].clone(), examples=i + 1, loss=1.0).weigh(1.0, 1.0)

    updates = [sent(i, row) for i, row in enumerate(values)]
    total = made("median").sum(updates, 1)
    assert torch.equal(total.cells[1], values[:5].median(dim=0).values)
    assert torch.equal(total.cells[2], (values[:, :3] + 1).median(dim=0).values)
    assert torch.equal(total.psi, values[6:, :2].median(dim=0).values)
    assert total.weights == {PSI: 1.0, 1: 1.0, 2: 1.0}
    assert (total.clients, total.examples, total.loss) == (9, 45, 45.0)
    assert made("median").sum([], 1) is None


def test_buckets_are_means_drawn_anew_each_round_and_few_clients_are_not_put_into_them():
    """Of four clients in two buckets the median is a mean; by themselves one of them may lie."""
    values = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    updates = [update_of({1: row}).weigh(1.0, 1.0) for row in values]
    infinite, two = made("centred", 2, radius=float("inf")), made("median", 2)
    first, second, same = (two.sum(updates, round).cells[1] for round in (1, 2, 1))
    assert torch.equal(first, same) and not torch.equal(first, second)
    assert not torch.equal(first, made("median", 2, seed=1).sum(updates, 1).cells[1])
    four = infinite.sum(updates[:6], 1).cells[1]  # equal buckets: the mean of means is the mean
    torch.testing.assert_close(four, values[:6].mean(dim=0))
    assert [two.bears(n) for n in (1, 2, 3, 4, 5, 8, 12)] == [0, 0, 1, 1, 1, 1, 2]
    updates = [update_of({1: torch.tensor([value])}).weigh(1.0, 1.0) for value in (1.0, 2.0, 1e15, 3.0)]
    assert made("median", 2).sum(updates, 1).cells[1].item() == 2.5


def test_without_buckets_the_defence_sees_updates_in_the_cohorts_order():
    seen = []

    class Seeing(DEFENCES["median"]):
        def combine(self, values, memory):
            seen.append(torch.cat(values).tolist())
            return values[0]

    updates = [update_of({1: torch.tensor([float(i)])}).weigh(1.0, 1.0) for i in range(9)]
    Defended(Seeing()).sum(updates, 1)
    assert seen.pop() == list(range(9))
    order = generator(5, "buckets", 2).permutation(9).tolist()
    Defended(Seeing(), 2, seed=5).sum(updates, 2)
    ends = [9 * i // 5 for i in range(6)]
    expected = [sum(order[a:b]) / (b - a) for a, b in pairwise(ends)]
    assert seen.pop() == pytest.approx(expected)


def summed(bound, rows, name="centred", **options):
    updates = [update_of({1: torch.tensor(row)}).weigh(1.0, 1.0) for row in rows]
    return made(name, **options).sum(updates, 1, (UNIT, bound)).cells[1]


ROWS = [[1.0, 1.0], [1.0, -1.0], [2.0, 0.0], [-20.0, 0.0], [1.5, 1.0]]


def test_a_bound_is_for_the_result_and_while_no_norm_is_known_the_median_of_those_that_came():
    """Ten times as long and turned round: within 3 radii, were it shortened to 4 before."""
    honest, reach = torch.tensor(ROWS)[[0, 1, 2, 4]], {"radius": 2.0, "reach": 3.0}
    torch.testing.assert_close(summed(Bound(4.0), ROWS, **reach), honest.mean(dim=0))
    torch.testing.assert_close(summed(Bound(0.5), ROWS, **reach).norm(), torch.tensor(0.5))
    mean = torch.tensor(ROWS).mean(dim=0)
    expected = mean / mean.norm() * torch.tensor([1.5, 1.0]).norm()
    torch.testing.assert_close(summed(UNIT, ROWS, radius=1e9), expected)
    assert summed(UNIT, [[1e15, 0.0], [0.0, 1.0]]).norm() <= 1.0
    assert summed(UNIT, [[1e15, 0.0], [0.0, 0.0]]).tolist() == [0.0, 0.0], "of one nobody can say"
    updates = [update_of({1: torch.tensor([1e15, 0.0])}).weigh(1.0, 1.0)]
    found = made("centred").sum(updates, 2, (UNIT, UNIT), {1: [0.5]}).cells[1]
    torch.testing.assert_close(found, torch.tensor([0.5, 0.0]), msg="but of two, one of them a round ago")


@pytest.mark.parametrize("name", DEFENCES.names())
def test_where_nobody_can_be_borne_each_is_shortened_by_itself(name):
    found = summed(Bound(4.0), [[1e15, 0.0], [0.0, 1.0]], name)
    assert found[0] <= 4.0 and found[1] >= 0.2


def run(rounds, federation=None, **changes):
    task = Task(chain_net(), transforms=[augmentation()], samples=1)
    options = {"weighting": "uniform", "defence": "centred", "chunks": (0.5, 0.3, 0.2), **changes}
    federation = federation or Federation(Protocol(task, settings(10, **options)))
    return after(rounds, federation, shards(range(3, 13)))[0]


def test_a_round_that_does_not_step_is_not_remembered():
    federation = run(1, min_replies=10)
    before = {cell: value.clone() for cell, value in federation.stage(RobustSum).defended.memory.items()}
    update = update_of({1: torch.ones_like(before[1])}).weigh(1.0, 1.0)
    federation.step(CohortSum(total=update))
    after = federation.stage(RobustSum).defended.memory
    assert all(torch.equal(value, before[cell]) for cell, value in after.items())


def test_an_infinite_radius_is_the_run_without_a_defence():
    plain, defended = run(1, defence=None), run(1, defence_options={"radius": float("inf")})
    assert torch.equal(plain.w, defended.w)


@pytest.mark.slow
def test_usual_norms_that_are_never_reached_change_no_bit_of_a_defended_run():
    """Once they are known; clients are measured, and named if they are longer."""
    free, bound = run(1), run(1, clip={"multiple": 1e6})
    plain = Federation(free.protocol)
    plain.load_state_dict(bound.state_dict())
    run(3, plain), run(3, bound)
    assert_same(plain, bound)
    assert bound.stage(UsualBounds).bounds()[1].norm > 0 and bound.stage(UsualBounds).clipped == []
    tight = run(3, clip={"multiple": 0.1})
    assert tight.stage(UsualBounds).clipped == tight.protocol.cohort(3)
