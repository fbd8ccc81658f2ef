"""Chunks of clients: in the proportions u, fixed for the run, balanced when clients join late."""

import pytest

from fedpart.federated.clients import assigned_chunks


def chunks(u, clients, seed=0, last=None):
    assignment = assigned_chunks(u, clients, seed)
    return [assignment[client] for client in range(last or clients)]


@pytest.mark.parametrize(
    ("u", "clients", "counts"),
    [
        ((0.7, 0.2, 0.1), 100, [70, 20, 10]),
        ((0.9, 0.1), 100, [90, 10]),
        ((0.7, 0.2, 0.1), 14, [10, 3, 1]),  # 9.8, 2.8, 1.4: the two left over go to the largest remainders
        ((1 / 3, 1 / 3, 1 / 3), 10, [4, 3, 3]),
        ((0.98, 0.01, 0.01), 5, [3, 1, 1]),  # at least one client each
        ((1.0,), 4, [4]),
        ((0.25,) * 4, 4, [1, 1, 1, 1]),
    ],
)
def test_counts_are_largest_remainders_and_never_zero(u, clients, counts):
    given = chunks(u, clients, seed=9)
    assert [given.count(k) for k in range(1, len(u) + 1)] == counts


def test_the_seed_decides_who():
    u = (0.7, 0.2, 0.1)
    assert chunks(u, 100, 1) == chunks(u, 100, 1)
    assert chunks(u, 100, 1) != chunks(u, 100, 2)
    assert chunks(u, 100, 1) != sorted(chunks(u, 100, 1)), "at random, not in the order of client numbers"


def test_clients_that_join_late_keep_the_balance():
    u = (0.7, 0.2, 0.1)
    given = chunks(u, 20, last=200)
    assert given[:20] == chunks(u, 20)
    for n in range(20, 201):
        for k, share in enumerate(u, start=1):
            assert abs(given[:n].count(k) - share * n) <= 1, f"{n} clients"


def test_the_order_of_joining_does_not_matter():
    far_first, near_first = (assigned_chunks((0.6, 0.4), 5, 0) for _ in range(2))
    late = [far_first[client] for client in (17, 6, 11, 5)]
    assert late == [near_first[client] for client in (5, 6, 11, 17)][::-1][:1] + [
        near_first[client] for client in (6, 11, 5)
    ]
