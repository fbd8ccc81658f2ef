"""Who evaluates, what is taken of the answers, and what they amount to."""

import numpy as np
import pytest
from problems import chain_net, settings, smooth_net
from torch import nn

from fedpart import Federation, Protocol, RoundReport, Task
from fedpart.federated.cohorts import CohortSum
from fedpart.federated.evaluation import ClientScores, evaluation_cohort, is_due
from fedpart.federated.wire import decode_score
from fedpart.task.held_out import HeldOutScore
from fedpart.updates.errors import ClientError, Refusal

N = 24


def protocol(task=None, **changes):
    changes = {"chunks": (0.5, 0.3, 0.2), "evaluation": "clients", "max_examples": 50, **changes}
    return Protocol(task or Task(chain_net()), settings(N, cohort=4, **changes))


def report_of(some, scores, **options):
    federation = Federation(some)
    federation.step(CohortSum())
    report = RoundReport.of(federation, CohortSum(), 0.0, 0, options.pop("refused_before", ()))
    gathered = ClientScores(some, list(scores))

    def score_of(client):
        if isinstance(scores[client], Exception):
            raise scores[client]
        return scores[client]

    gathered.gather(score_of)
    gathered.write(report, **options)
    return report


def test_all_clients_or_a_drawn_sample_evaluate_every_so_many_rounds_and_at_the_end():
    assert evaluation_cohort(settings(N), 3) == list(range(N))
    few = settings(N, evaluation_clients=5)
    cohorts = [evaluation_cohort(few, round) for round in range(1, 60)]
    assert all(len(set(cohort)) == 5 and cohort == sorted(cohort) for cohort in cohorts)
    assert set(np.concatenate(cohorts).tolist()) == set(range(N))
    other = settings(N, seed=4, evaluation_clients=5)
    assert cohorts[6] == evaluation_cohort(few, 7) != evaluation_cohort(other, 7)
    clients, central = settings(N, evaluation="clients"), settings(N)
    assert [round for round in range(1, 9) if is_due(clients, round, 3, 8)] == [3, 6, 8]
    assert not any(is_due(central, round, 1, 8) for round in range(1, 9))


def test_means_are_weighted_by_examples_and_the_worst_tenth_by_clients():
    some, g = protocol(), np.random.default_rng(0)
    n = g.integers(0, 9, N)
    nll, right = n * g.random(N), g.integers(0, n + 1)
    scores = {c: HeldOutScore(int(n[c]), float(nll[c]), int(right[c])) for c in range(N)}
    report = report_of(some, scores)
    chunk = np.array([some.chunk(client) for client in range(N)])
    n, nll, right, chunk = (values[n > 0] for values in (n, nll, right, chunk))
    assert 20 <= len(n) < N
    assert report.client_accuracy == pytest.approx(right.sum() / n.sum())
    assert report.client_nll == pytest.approx(nll.sum() / n.sum())
    worst, highest = np.sort(right / n)[:2], np.sort(nll / n)[-2:]
    assert report.client_accuracy_worst_decile == pytest.approx(worst.mean())
    assert report.client_nll_worst_decile == pytest.approx(highest.mean())
    for means, sums in ((report.client_accuracy_chunks, right), (report.client_nll_chunks, nll)):
        assert means == pytest.approx([sums[chunk == k].sum() / n[chunk == k].sum() for k in (1, 2, 3)])
    each = [int(scores[c].correct) / scores[c].examples if scores[c].examples else None for c in range(N)]
    assert report.client_accuracy_each == each
    assert report_of(protocol(evaluation_clients=N - 1), scores).client_accuracy_each is None


def test_few_clients_have_a_worst_one_and_chunks_or_all_may_have_nobody_and_no_classes():
    some = protocol()
    first = next(client for client in range(N) if some.chunk(client) == 2)
    report = report_of(some, {first: HeldOutScore(4, 1.0, 3)})
    assert report.client_accuracy_worst_decile == report.client_accuracy == 0.75
    assert report.client_accuracy_chunks == [None, 0.75, None]
    none = report_of(protocol(), {0: HeldOutScore(0, 0.0, 0)})
    assert (none.client_nll, none.client_accuracy, none.client_accuracy_chunks) == (None, None, None)
    regression = report_of(protocol(), {0: HeldOutScore(4, 2.0, None)})
    assert (regression.client_nll, regression.client_accuracy) == (0.5, None)
    assert (regression.client_nll_worst_decile, regression.client_accuracy_worst_decile) == (0.5, None)


def test_clients_that_fail_are_left_out_and_counted_or_end_the_run():
    scores = {0: HeldOutScore(4, 2.0, 1), 1: ClientError("gone"), 2: HeldOutScore(4, 2.0, 3)}
    skipping = protocol(on_client_error="skip")
    report = report_of(skipping, scores, refused=["late"], refused_before=["late", "loss"])
    assert report.client_accuracy == 0.5
    assert report.refused == {"client_error": 1, "late": 2, "loss": 1}
    with pytest.raises(ClientError, match="gone"):
        report_of(protocol(), scores)


GOOD = {"examples": 5, "nll": 2.5, "correct": 4}


def test_scores_that_cannot_be_are_refused():
    regression = protocol(Task(nn.Sequential(nn.Flatten(), nn.Linear(36, 1)), likelihood="gaussian"))
    with pytest.raises(Refusal, match="correct classes was not asked for"):
        decode_score({"examples": 3, "nll": 1.0, "correct": 1}, regression)
    cases = [
        ({"examples": None}, "malformed"),
        ({"examples": 5.0}, "malformed"),
        ({"examples": True}, "malformed"),
        ({"nll": 2}, "malformed"),
        ({"nll": [2.5]}, "malformed"),
        ({"correct": True}, "malformed"),
        ({"correct": float("nan")}, "examples"),
        ({"correct": None}, "malformed"),
        ({"examples": -1, "correct": -1}, "examples"),
        ({"examples": 51}, "examples"),
        ({"correct": 6}, "examples"),
        ({"correct": -1}, "examples"),
        ({"nll": float("nan")}, "loss"),
        ({"nll": float("inf")}, "loss"),
        ({"nll": -2e15}, "loss"),
        ({"examples": 0, "correct": 0}, "loss"),
    ]

    def category(change):
        scalars = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
        try:
            decode_score(scalars, protocol())
        except Refusal as refusal:
            return refusal.category

    assert category({}) is None
    assert [(change, category(change)) for change, _ in cases] == cases


def test_what_is_held_out_is_agreed_upon_and_fewer_samples_are_those_of_the_task_that_evaluates():
    plain, none = protocol(evaluation="central"), protocol(evaluation="none", evaluation_share=0.5)
    assert plain.fingerprint == none.fingerprint
    assert not any(name.startswith("evaluation") for name in plain.agreement)
    assert len({plain.fingerprint, protocol().fingerprint, protocol(evaluation_share=0.5).fingerprint}) == 3
    task = Task(smooth_net(), samples=4)
    assert protocol(task, evaluation_samples=2).scoring_task(0).samples == 2
    assert protocol(task, evaluation_samples=9).scoring_task(0).samples == 4  # more would be the same ones
