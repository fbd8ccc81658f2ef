"""Clients evaluate over Flower: the same numbers, and nothing that they say is believed unchecked."""

import pytest
import torch
from flower_experiment import CLIENTS, LIKELIHOODS, app, assert_equal_runs, build, deployed, local
from flwr.app import ConfigRecord, MetricRecord
from inprocess_grid import InProcessGrid

from fedpart import ClientError, Federation
from fedpart.flower.strategy import FedPart
from fedpart.updates.update import PSI

CLIENTS_EVALUATE = {"evaluation": "clients", "evaluation_share": 0.3}
SKIP = {**CLIENTS_EVALUATE, "on_client_error": "skip"}

VICTIM = 4


def is_victims(reply):
    return reply.metadata.message_type == "evaluate" and reply.content["config"]["client"] == VICTIM


def in_evaluation(change):
    """Changes the content of the victim's answer in evaluations."""

    def tamper(reply):
        if is_victims(reply):
            change(reply.content)
        return reply

    return tamper


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "changes", [{}, {"method": "fedavg"}, {"method": "fedex"}, {"evaluation_clients": 5}]
)
def test_the_numbers_are_those_of_the_local_engine(changes):
    config = {**CLIENTS_EVALUATE, **changes}
    one, other = deployed(3, config, every=2), local(3, every=2, **config)
    assert_equal_runs(one, other)
    assert [report.round for report in one[1] if report.client_nll is not None] == [2, 3]


@pytest.mark.quick(2)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_is_scored_as_by_the_local_engine(likelihood):
    """One client has a single example, and holds nothing out."""
    config = {**CLIENTS_EVALUATE, "likelihood": likelihood, "single": VICTIM}
    one, other = deployed(1, config), local(1, **config)
    assert_equal_runs(one, other)
    (report,) = one[1]
    assert (report.client_accuracy is None) == (likelihood == "gaussian")
    assert report.client_nll_worst_decile > report.client_nll


@pytest.mark.slow
def test_reports_come_in_order_and_the_seconds_and_bytes_of_an_evaluation_are_in_them():
    _, reports = deployed(3, CLIENTS_EVALUATE, every=2)
    _, without = deployed(3, CLIENTS_EVALUATE, every=4)
    assert [report.round for report in reports] == [1, 2, 3]
    assert [report.evaluation_bytes is not None for report in reports] == [False, True, True]
    assert [report.download_bytes for report in reports] == [report.download_bytes for report in without]
    w, psi = Federation(build({}).protocol).w, Federation(build({}).protocol).psi
    state = 4 * (len(w) + len(psi))
    _, here = local(3, **CLIENTS_EVALUATE)
    assert reports[2].evaluation_bytes > CLIENTS * state
    assert here[2].evaluation_bytes == pytest.approx(reports[2].evaluation_bytes, rel=0.03)


def test_start_knows_the_last_round_too():
    federation, reports = Federation(build(CLIENTS_EVALUATE).protocol), []
    strategy = FedPart(federation, on_round=reports.append)
    strategy.start(InProcessGrid(app, CLIENTS, CLIENTS_EVALUATE), strategy.initial_arrays(), num_rounds=2)
    assert [report.client_nll is not None for report in reports] == [False, True]


def puts(record, **values):
    return lambda content: content[record].update(values)


BAD = {  # of scores and headers one each: test_client_scores.py and test_federated_refusals.py have them all
    "nan": (puts("metrics", nll=float("nan")), "loss"),
    "missing": (lambda content: content["metrics"].pop("correct"), "malformed"),
    "metrics": (lambda content: content.pop("metrics"), "malformed"),
    "record": (lambda content: content.update(metrics=ConfigRecord()), "malformed"),
    "header": (lambda content: content.update(config=MetricRecord()), "malformed"),
    "round": (puts("config", round=9), "round"),
}


@pytest.fixture(scope="module")
def without_answers():
    """A run in which everybody answers, and one in which the victim does not."""
    return deployed(1, SKIP), deployed(1, SKIP, tamper=lambda reply: None if is_victims(reply) else reply)


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_score_is_refused_and_counts_for_nothing(kind, without_answers):
    change, category = BAD[kind]
    with pytest.raises(ClientError, match=f"client {VICTIM} in round 1 was refused"):
        deployed(1, CLIENTS_EVALUATE, tamper=in_evaluation(change))
    federation, (report,) = deployed(1, SKIP, tamper=in_evaluation(change))
    (_, (honest,)), (silent, (other,)) = without_answers
    assert report.refused == {category: 1} and other.refused == {"no_answer": 1}
    assert report.client_nll == other.client_nll != honest.client_nll
    assert report.client_accuracy_chunks == other.client_accuracy_chunks
    assert torch.equal(federation.w, silent.w)


def test_clients_that_are_away_do_not_evaluate():
    grid = InProcessGrid(app, CLIENTS, SKIP)
    for client in range(3, CLIENTS):
        grid.leave(client)
    _, (report,) = deployed(1, SKIP, grid)
    asked = [message for message in grid.sent if message.metadata.message_type == "evaluate"]
    assert sorted(message.content["config"]["client"] for message in asked) == [0, 1, 2]
    assert report.client_nll is not None and report.refused == {}


SIZES = {"sizes": True, "evaluation": "clients", "width": 100}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg"},
        {"method": "fjord", "upload": "int4"},
        {"drawn": True, "download": "fp16"},
        {"capped": True},
        {"sharing": "bank"},
        {"sharing": "basis", "upload": "int4"},
    ],
)
def test_the_numbers_and_bytes_are_those_of_the_local_engine(changes):
    config = {**SIZES, **changes}
    found, other = deployed(2, config, every=1), local(2, every=1, **config)
    for report, predicted in zip(found[1], other[1], strict=True):
        for key in ("download_bytes", "upload_bytes"):
            assert getattr(report, key) == pytest.approx(getattr(predicted, key), abs=5 * 150)  # headers
    assert_equal_runs(found, other)


CAPPED = {"capped": True, "evaluation": "clients", "width": 400}


def test_bytes_of_capped_clients_are_those_of_the_messages():
    grid = InProcessGrid(app, CLIENTS, CAPPED)
    federation, reports = deployed(2, CAPPED, grid, every=2)
    here, others = local(2, every=2, **CAPPED)
    assert_equal_runs((federation, reports), (here, others))
    scored = reports[-1].client_nll_caps
    assert scored[0] != scored[2] and scored[1] is None
    assert sum(report.upload_bytes for report in reports) == grid.bytes_up
    told = [report.upload_bytes for report in others]
    assert told == pytest.approx([report.upload_bytes for report in reports], rel=2e-3)
    protocol = federation.protocol
    alone = [c for c in range(CLIENTS) if not protocol.upload_sizes(c, protocol.plan(c, 1)).keys() - {PSI}]
    assert alone and any(client in report.cohort for report in reports for client in alone)
