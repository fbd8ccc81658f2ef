"""Who is dealt what: chunks and caps by shares, heeded by plans; and whether a defence bears so few."""

import math

import pytest
from problems import augmentation, chain_net, settings

from fedpart import ClipSettings, PrivacySettings, Protocol, Task
from fedpart.federated.clients import Kind, assigned_caps, assigned_chunks
from fedpart.federated.report import contributors, exposed
from fedpart.task.gradients import Job
from fedpart.training.agreement import difference
from fedpart.updates.stages.privacy import Privacy

CHUNKS = (0.5, 0.3, 0.2)
PSI_ONLY = {1: 0.7, 2: 0.1, 3: 0.2}  # of 20 clients, 4 in chunk 2 have the cap 1


def protocol(clients=20, task=None, **changes):
    task = task or Task(chain_net(), transforms=[augmentation()])
    return Protocol(task, settings(clients, **{"chunks": CHUNKS, "cohort": 6, **changes}))


def dealt(shares, deal, clients=20, seed=0, last=None):
    """Chunk and cap of every client."""
    chunks = assigned_chunks(CHUNKS, clients, seed)
    caps = assigned_caps(shares, deal, chunks, clients, seed)
    return [(chunks[client], caps[client]) for client in range(last or clients)]


SHARES = {1: 0.35, 2: 0.25, 3: 0.4}


def test_the_shares_are_those_of_the_clients_and_the_smallest_sit_in_the_first_chunks():
    pairs = dealt(SHARES, "chunk")
    assert [[cap for _, cap in pairs].count(c) for c in (1, 2, 3)] == [7, 5, 8]
    assert [cap for _, cap in sorted(pairs)] == sorted(cap for _, cap in pairs)
    assert pairs != dealt(SHARES, "chunk", seed=1)
    order = [cap for chunk, cap in dealt(SHARES, "chunk", 200) if chunk == 1]
    assert order != sorted(order), "within a chunk the seed decides, not the number"


def test_free_caps_know_nothing_of_chunks():
    pairs = dealt(SHARES, "free", 4000)
    for k, u in enumerate(CHUNKS, start=1):
        for c, share in SHARES.items():
            expected = 4000 * u * share
            assert abs(pairs.count((k, c)) - expected) < 4 * math.sqrt(expected), (k, c)


@pytest.mark.parametrize("deal", ["chunk", "free"])
def test_clients_that_join_late_can_train_and_the_order_does_not_matter(deal):
    pairs = dealt(SHARES, deal, last=300)
    assert pairs[:20] == dealt(SHARES, deal)
    assert all(cap >= chunk for chunk, cap in pairs[20:])
    caps = [cap for _, cap in pairs]
    assert all(abs(caps.count(c) - 300 * share) <= 2 for c, share in SHARES.items())
    far_first, near_first = (assigned_caps(SHARES, deal, assigned_chunks(CHUNKS, 20, 0), 20, 0) for _ in "ab")
    assert [far_first[90], far_first[21]] == [near_first[21], near_first[90]][::-1]


def test_kinds_count_the_clients_and_none_is_asked_for_anything_beyond_its_cap():
    p = protocol(caps=PSI_ONLY)
    pairs = [(p.chunk(client), p.cap(client), 0) for client in range(20)]
    assert p.kinds == {pair: (pairs.index(pair), pairs.count(pair)) for pair in sorted(set(pairs))}
    assert p.kinds.keys() == {(1, 1, 0), (2, 1, 0), (2, 2, 0), (3, 3, 0)}
    p, whole = protocol(caps=PSI_ONLY), protocol()
    assert [p.chunk(client) for client in range(20)] == [whole.chunk(client) for client in range(20)]
    for client in range(20):
        cap, asked = p.cap(client), p.plan(client, 1)
        assert asked == [job for job in whole.plan(client, 1) if job.subnetwork <= cap]
        assert p.upload_sizes(client, asked).keys() <= set(range(cap + 1))
    (alone,) = {tuple(p.plan(c, 1)) for c in range(20) if (p.chunk(c), p.cap(c)) == (2, 1)}
    assert alone == (Job(1, psi=True),) and p.unseen(p.kinds[Kind(2, 1, 0)][0], alone) == alone[0]


def test_privacy_divides_by_those_that_contribute():
    private = {"clip": ClipSettings(1.0, 1.0), "privacy": PrivacySettings(1.0, randomness="seed")}
    weights = Privacy(protocol(caps=PSI_ONLY, weighting="uniform", **private)).weights
    assert weights == pytest.approx({part: 6 / 20 * n for part, n in {0: 10, 1: 10, 2: 2, 3: 4}.items()})


def test_server_and_clients_agree_on_them():
    plain, capped = protocol(), protocol(caps=PSI_ONLY)
    assert len({plain.fingerprint, capped.fingerprint, protocol(caps={3: 1.0}).fingerprint}) == 3
    assert "caps was None, is {'1': 0.7" in difference(capped.agreement, plain.agreement)
    assert difference(plain.agreement, capped.agreement).endswith("is None")
    before = {key: value for key, value in plain.agreement.items() if key != "caps"}
    assert not difference(plain.agreement, before), "checkpoints from before there were caps"


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


def test_the_seed_decides_who_and_clients_that_join_late_in_any_order_keep_the_balance():
    one, same, other = (chunks((0.7, 0.2, 0.1), 100, seed) for seed in (1, 1, 2))
    assert one == same != other and one != sorted(one), "at random, not in the order of client numbers"
    u = (0.7, 0.2, 0.1)
    given = chunks(u, 20, last=200)
    assert given[:20] == chunks(u, 20)
    for n in range(20, 201):
        for k, share in enumerate(u, start=1):
            assert abs(given[:n].count(k) - share * n) <= 1, f"{n} clients"
    one, other = (assigned_chunks((0.6, 0.4), 5, 0) for _ in range(2))
    first = {client: one[client] for client in (17, 6, 11, 5)}
    assert first == {client: other[client] for client in (5, 6, 11, 17)}


EVEN = {"chunks": (0.7, 0.2, 0.1), "cohort": 10, "weighting": "uniform"}


def test_contributors_of_a_cohort():
    assert contributors(protocol(**EVEN)) == {"psi": 3.0, "w_1": 7.0, "w_2": 9.0, "w_3": 10.0}
    capped = protocol(**EVEN, caps={1: 0.5, 3: 0.5})
    assert contributors(capped) == {"psi": 3.0, "w_1": 7.0, "w_2": 4.0, "w_3": 5.0}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, ""),
        ({"defence": "median"}, ""),
        ({"defence": "krum", "cohort": 4}, "psi from 1.2"),
        ({"defence": "median", "cohort": 3}, "psi from 0.9, w_1 from 2.1"),
    ],
)
def test_few_contributors_are_named(changes, named):
    said = exposed(protocol(**EVEN | changes))
    assert (named in said and "larger cohort" in said) if named else said == ""
