"""Differential privacy: what it costs, what noise there is, and what one client can change."""

import math

import numpy as np
import pytest
import torch
from flower_experiment import build, deployed, local
from problems import accepted, after, augmentation, chain_net, settings, shards, smooth_net, update_of

from fedpart import ClipSettings, Federation, PrivacySettings, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.updates.ledger import ORDERS, epsilon, renyi
from fedpart.updates.stages.privacy import Privacy
from fedpart.updates.update import PSI, Round

CHUNKS = (0.5, 0.25, 0.25)
NORMS, PSI_NORM = (3.0, 2.0, 1.0), 0.5


def private(clients=8, cohort=4, z=1.0, randomness="seed", **changes):
    options = {
        "cohort": cohort,
        "chunks": CHUNKS,
        "weighting": "uniform",
        "clip": ClipSettings(NORMS, PSI_NORM),
    }
    options["privacy"] = PrivacySettings(z, randomness=randomness)
    return settings(clients, **options | changes)


def protocol(**changes):
    return Protocol(Task(smooth_net()), private(**changes))


@pytest.mark.parametrize(
    ("rate", "z", "rounds", "delta", "expected"),
    [  # of dp-accounting 0.6.0's RdpAccountant with orders 2..256
        (256 / 60_000, 1.3, 3515, 1e-5, 0.9544295087),
        (0.01, 4.0, 10_000, 1e-5, 1.0354900660),
        (0.1, 1.0, 100, 1e-5, 7.9729215104),
        (0.01, 0.8, 1000, 1e-6, 4.3008864945),
        (1.0, 5.0, 50, 1e-5, 7.0878616288),
        (0.1, 0.6, 20, 1e-3, 8.3311711675),
    ],
)
def test_costs_of_the_reference_accountant(rate, z, rounds, delta, expected):
    assert epsilon(renyi(rate, z), rounds, delta) == pytest.approx(expected, rel=1e-9)


def test_costs_at_the_ends():
    assert epsilon(renyi(0.1, 1.0), 0, 1e-5) == 0.0
    np.testing.assert_allclose(renyi(1 - 1e-12, 1.0), renyi(1.0, 1.0), rtol=1e-6)
    divergence = renyi(0.3, 50.0)
    assert (divergence >= 0).all() and (np.diff(divergence * (ORDERS - 1)) > 0).all()


def test_noise_has_the_stated_deviation_and_repeats_with_its_seed_alone():
    some = protocol(z=2.0)
    mechanism = Privacy(some)
    most = 3  # w_1, w_2, w_3 of chunk 1; w_2, w_3, psi of chunk 2
    rows = [mechanism.total(None, round, {}) for round in range(1, 400)]
    for j, norm in enumerate(NORMS, start=1):
        noise = torch.cat([row.cells[j] for row in rows])
        deviation = 2.0 * math.sqrt(most) * norm
        assert noise.std().item() == pytest.approx(deviation, rel=4 / math.sqrt(2 * len(noise)))
        assert noise.mean().item() == pytest.approx(0.0, abs=4 * deviation / math.sqrt(len(noise)))
        assert noise.abs().max().item() < 7 * deviation
    noise = torch.cat([row.psi for row in rows])
    assert noise.std().item() == pytest.approx(
        2.0 * math.sqrt(most) * PSI_NORM, rel=4 / math.sqrt(2 * len(noise))
    )
    assert torch.equal(Privacy(some).total(None, 7, {}).cells[1], rows[6].cells[1])
    assert not torch.equal(rows[5].cells[1], rows[6].cells[1])
    assert not torch.equal(rows[6].cells[1][:9], rows[6].cells[2][:9])
    secret = [Privacy(protocol(randomness="system")).total(None, 1, {}) for _ in range(2)]
    assert not torch.equal(secret[0].cells[1], secret[1].cells[1])


@pytest.mark.parametrize("quantile", [None, 0.5, 0.8])
def test_one_client_moves_a_release_by_the_accounted_sensitivity_at_most(quantile):
    """In units of the noise, sqrt(sum_g (|change of g| / sigma_g)^2) <= 1 / z for every chunk."""
    some = protocol(z=1.5, clip=ClipSettings(NORMS, PSI_NORM, quantile=quantile))
    sizes = some.partition.sizes
    for client in range(some.settings.clients):
        jobs = some.plan(client, 1)
        mechanism = Privacy(some)
        deviations = mechanism.deviations
        round = Round(1, torch.zeros(1), torch.zeros(1), bounds=mechanism.bounds())
        largest = min(round.limit, 1e6)
        trained = [job.partition for job in jobs if job.partition]
        deltas = {j: torch.full((sizes[j - 1],), largest) for j in trained}
        gradient = torch.full((1,), -1e6) if any(job.psi for job in jobs) else None
        loud = update_of(deltas, gradient, examples=10**6)
        term, norms = accepted(some, client, loud, round)
        with_it, without = mechanism.total(term, 1, {}), Privacy(some).total(None, 1, {})
        moved = [(with_it.cells[j] - without.cells[j]).norm().item() / deviations[j] for j in (1, 2, 3)]
        moved.append((with_it.psi - without.psi).norm().item() / deviations[0])
        if quantile is not None:  # what a client that is too long takes off the counts of its parts
            moved += [quantile / mechanism.count_deviation] * len(norms)
        distance = math.sqrt(sum(one**2 for one in moved))
        most = len(jobs) == 3
        assert distance <= 1 / 1.5 * (1 + 1e-4)
        assert (distance > 0.99 / 1.5) == most  # it is reached by chunks 1 and 2; chunk 3 has two parts
        assert with_it.weights == without.weights


def norms_of(mechanism, lengths):
    """Norms of a cohort of which each client has sent every part, as long as is said."""
    return {client: dict.fromkeys(mechanism.weights, length) for client, length in enumerate(lengths)}


@pytest.mark.quick(1)
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_clients_that_are_away_and_noise_push_norms_to_no_side(quantile):
    start = ClipSettings(1.0, 1.0, quantile=quantile)
    mechanism = Privacy(protocol(clients=1000, cohort=100, z=1.0, clip=start))
    random, ends = np.random.default_rng(0), []
    for round in range(1, 801):
        norms = norms_of(mechanism, random.lognormal(0.0, 0.5, random.binomial(50, 0.5)))
        mechanism.total(None, round, norms)
        ends.append([math.log(bound.norm) for bound in mechanism.bounds()])
    wanted = 0.5 * {0.1: -1.2816, 0.5: 0.0, 0.9: 1.2816}[quantile]  # of the normal distribution
    assert np.mean(ends[200:], 0) == pytest.approx([wanted] * 4, abs=0.2)


def test_norms_that_nobody_reaches_end_at_a_bound():
    mechanism = Privacy(protocol(clients=4, cohort=4, z=1e-6, clip=ClipSettings(1.0, 0.5, quantile=0.5)))
    for round in range(1, 401):
        mechanism.total(None, round, norms_of(mechanism, [0.0] * 2))
    assert [one.norm for one in mechanism.bounds()] == pytest.approx([0.5e-6, 1e-6, 1e-6, 1e-6])


@pytest.mark.slow
def test_a_norm_moves_by_the_noisy_share_below_it_alone():
    """S exp(-0.2 (b - q)) of Andrew et al. (2021), where b - q is the noisy count over the contributors."""
    start = ClipSettings(NORMS, PSI_NORM, quantile=0.5)
    some = protocol(clients=400, cohort=400, z=0.01, clip=start)
    counts = []
    for round in range(1, 301):
        mechanism = Privacy(some)
        mechanism.total(None, round, norms_of(mechanism, [0.1] * 220 + [9.0] * 180))
        moved = [new.norm / old for new, old in zip(mechanism.bounds()[1:], NORMS, strict=True)]
        counts.append([-math.log(one) / 0.2 * mechanism.weights[j] for j, one in enumerate(moved, start=1)])
    counts = np.array(counts)
    assert counts.mean(0) == pytest.approx([20] * 3, abs=0.05)  # halves of 220 less 180
    deviation = 0.01 * math.sqrt(3 / (4 * 0.05))
    assert mechanism.count_deviation == pytest.approx(deviation)
    assert counts.std() == pytest.approx(deviation, rel=4 / math.sqrt(2 * 900))


@pytest.mark.slow
def test_norms_that_follow_cost_what_fixed_ones_do():
    runs = []
    for quantile in (0.5, None):
        clip, privacy = ClipSettings(1e-3, 1e-3, quantile=quantile), PrivacySettings(0.5, randomness="seed")
        runs.append(local(2, weighting="uniform", clip=clip, privacy=privacy))
    (follows, reports), (fixed, others) = runs
    assert reports[-1].epsilon == others[-1].epsilon and not torch.equal(fixed.w, follows.w)
    assert all(bound.norm != 1e-3 for bound in follows.stage(Privacy).bounds())


def test_averages_are_over_the_expected_contributors():
    some = protocol(clients=8, cohort=4)
    total = Privacy(some).total(None, 1, {})
    assert [[*some.assignment.first(8)].count(chunk) for chunk in (1, 2, 3)] == [4, 2, 2]
    assert total.weights == {PSI: 0.5 * 4, 1: 0.5 * 4, 2: 0.5 * 6, 3: 0.5 * 8}


def test_cohorts_are_drawn_client_by_client():
    mechanism = Privacy(protocol(clients=40, cohort=10))
    cohorts = [mechanism.cohort(round) for round in range(1, 401)]
    counts = np.bincount(np.concatenate(cohorts), minlength=40)
    assert abs(counts - 100).max() < 4.5 * math.sqrt(400 * 0.25 * 0.75)
    sizes = np.array([len(cohort) for cohort in cohorts])
    assert sizes.var() == pytest.approx(40 * 0.25 * 0.75, rel=0.4)  # of a fixed number it would be 0
    assert cohorts[3] == mechanism.cohort(4) and cohorts[3] == sorted(cohorts[3])
    there = list(range(0, 40, 2))
    assert mechanism.cohort(4, there) == [client for client in cohorts[3] if client % 2 == 0]
    assert mechanism.cohort(1, []) == []


def test_frozen_hyperparameters_stay_and_every_round_steps():
    task = Task(chain_net(), transforms=[augmentation()], samples=1)
    method = {"method": "fedavg", "method_options": {"augment": True}}
    options = private(clients=6, cohort=1, clip=ClipSettings(1.0), **method)
    federation, reports = after(6, Federation(Protocol(task, options)), shards([3] * 6))
    psi = Federation(federation.protocol).psi
    assert torch.equal(federation.psi, psi)
    assert [] in [report.cohort for report in reports], "the seed has a round without clients"
    assert all(report.stepped for report in reports)
    spent = [report.epsilon for report in reports]
    assert spent == sorted(spent) and spent[0] > 0
    assert spent[-1] == pytest.approx(epsilon(renyi(1 / 6, 1.0), 6, 1e-5))


def test_rounds_without_clients_over_flower():
    config = {"privacy": PrivacySettings(0.5, randomness="system"), "on_client_error": "skip"}
    config |= {"weighting": "uniform", "clip": ClipSettings(1.0, 1.0)}
    federation = Federation(build(config).protocol)
    federation.stage(Privacy).rate = 0.0
    _, reports = deployed(2, config, federation=federation)
    assert [report.cohort for report in reports] == [[], []]
    assert torch.isfinite(federation.w).all() and reports[1].train_loss is None


@pytest.mark.parametrize(("workers", "execution"), [(1, "loop"), (2, "loop"), (1, "grouped")])
def test_engines_take_empty_and_large_cohorts(workers, execution):
    task = Task(chain_net(), transforms=[augmentation()], samples=1)
    federation, reports = Federation(Protocol(task, private(clients=8, cohort=2))), []
    with LocalEngine(federation, shards([3] * 8), workers, execution) as engine:
        for rate in (0.0, 1.0):
            federation.stage(Privacy).rate = rate
            engine.run(federation.round + 1, reports.append)
    assert [report.replies for report in reports] == [0, 8]
    assert torch.isfinite(federation.w).all()
