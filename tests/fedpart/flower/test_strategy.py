from functools import partial

import numpy as np
import pytest
import torch
from flower_experiment import CLIENTS, app, assert_equal_runs, build, local
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from inprocess_grid import InProcessGrid

from fedpart import ClientError, Federation, FederationSettings, Protocol, Task
from fedpart.federated.cohorts import (
    DOWNLOAD_HEADER,
    UPLOAD_HEADER,
    expected_upload_ratio,
    state_bytes,
    upload_numbers,
)
from fedpart.federated.wire import VERSION
from fedpart.flower.messages import cause
from fedpart.flower.nodes import NodesError
from fedpart.flower.strategy import FedPart
from fedpart.flower.workarounds.traffic import message_bytes


def grid_of(config, **options):
    return InProcessGrid(app, CLIENTS, config, **options)


def run(rounds, config=None, grid=None, **options):
    config = config or {}
    federation, reports = Federation(build(config).protocol), []
    grid = grid or grid_of(config, **options)
    FedPart(federation, on_round=reports.append).run(grid, rounds)
    return federation, reports


@pytest.mark.parametrize("method", ["partitioned", "fedavg", "augerino", "fedex"])
def test_strategy_equals_the_local_engine(method):
    assert_equal_runs(run(4, {"method": method}), local(4, method=method))


def test_neither_node_ids_nor_the_order_of_replies_matter():
    assert_equal_runs(run(3, seed=1), run(3, seed=2))


def test_strategy_continues_where_the_federation_is():
    federation, reports = local(2)
    FedPart(federation, on_round=reports.append).run(grid_of({}), 5)
    assert_equal_runs((federation, reports), local(5))


def test_cohorts_are_exact_from_round_1():
    protocol = build({}).protocol
    _, reports = run(3)
    assert [report.cohort for report in reports] == [protocol.cohort(round) for round in (1, 2, 3)]


def test_start_takes_initial_arrays_and_returns_the_last():
    strategy = FedPart(Federation(build({}).protocol))
    evaluated = []
    result = strategy.start(
        grid_of({}), strategy.initial_arrays(), 2, evaluate_fn=lambda round, arrays: evaluated.append(round)
    )
    assert np.array_equal(result.arrays["w"].numpy(), strategy.federation.w.numpy())
    assert evaluated == [0, 1, 2]
    assert result.train_metrics_clientapp[2]["upload-bytes"] > 0


def test_bytes_are_those_of_the_serialised_messages():
    config = {"width": 400}  # 58 thousand weights
    grid = grid_of(config)
    federation, reports = run(4, config, grid)
    assert len(federation.w) > 50_000
    assert sum(report.upload_bytes for report in reports) == grid.bytes_up
    assert sum(report.download_bytes for report in reports) == grid.bytes_down
    protocol = federation.protocol
    predicted = sum(
        4 * upload_numbers(protocol, client, protocol.plan(client, report.round))
        for report in reports
        for client in report.cohort
    )
    sent = [client for report in reports for client in report.cohort]
    states = sum(map(partial(state_bytes, protocol), sent))
    assert (grid.bytes_up - predicted) / len(sent) == pytest.approx(UPLOAD_HEADER, abs=45)
    assert (grid.bytes_down - states) / len(sent) == pytest.approx(DOWNLOAD_HEADER, abs=45)
    _, estimated = local(4, **config)
    for name in ("upload_bytes", "download_bytes"):
        counted = sum(getattr(report, name) for report in reports)
        assert sum(getattr(report, name) for report in estimated) == pytest.approx(counted, rel=1e-3)


def test_message_bytes_count_every_form():
    InProcessGrid(app, 1)
    arrays = {"": Array(np.zeros(0, np.float32)), "long name" * 30: Array(np.ones((3, 500)))}
    records = {
        "arrays": ArrayRecord(arrays),
        "none": ArrayRecord(),
        "empty": ArrayRecord({"e": Array("float32", (0,), "numpy.ndarray", b"")}),
        "metrics": MetricRecord({"a": 1, "b": [0.5, 0.25]}),
        "config": ConfigRecord({"c": "text", "d": b"bytes", "e": True}),
    }
    messages = [Message(RecordDict(part), 1, "train") for part in (records, {}, {"x": records["none"]})]
    messages.append(Message(Error(2, "reason"), reply_to=messages[0]))
    for message in messages:
        assert message_bytes(message) == len(message_to_proto(message).SerializeToString())


def altered(client, change):
    """Changes one client's replies: ``change(content)``."""

    def tamper(reply):
        if reply.has_content() and reply.content["config"]["client"] == client:
            change(reply.content)
        return reply

    return tamper


def set_w(make):
    def change(content):
        w = content["arrays"]["w"].numpy()
        content["arrays"]["w"] = Array(make(w))

    return change


def spoil(w):
    w[-1] = np.nan
    return w


VICTIM = build({}).protocol.cohort(1)[2]
BAD = {
    "length": (set_w(lambda w: w[:-1]), "w has shape"),
    "dtype": (set_w(lambda w: w.astype(np.float64)), "w has dtype float64 where float32 is expected"),
    "nan": (set_w(spoil), "values that are not finite"),
    "bytes": (
        lambda content: content["arrays"].update(w=Array("float32", (3,), "numpy.ndarray", b"junk")),
        "its array w cannot be read",
    ),
    "pickle": (
        lambda content: content["arrays"].update(w=Array("float32", (3,), "pickle", b"junk")),
        "its array w cannot be read",
    ),
    "version": (
        lambda content: content["config"].update(version=0),
        f"its version is 0 where {VERSION} is expected",
    ),
    "round": (lambda content: content["config"].update(round=9), "its round is 9 where 1 is expected"),
    "chunk": (lambda content: content["config"].update(chunk=9), "its chunk is 9 where"),
    "client": (lambda content: content["config"].update(client=77), "its client is 77 where"),
    "fingerprint": (
        lambda content: content["config"].update(fingerprint="x"),
        "its fingerprint is 'x' where",
    ),
    "examples": (lambda content: content["metrics"].update(examples=0), "claims 0 examples"),
    "metrics": (lambda content: content.pop("metrics"), "it has no MetricRecord 'metrics'"),
    "config": (lambda content: content.update(config=MetricRecord()), "it has no ConfigRecord"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_upload_is_refused_and_touches_nothing(kind):
    change, reason = BAD[kind]
    federation = Federation(build({}).protocol)
    w, psi = federation.w.clone(), federation.psi.clone()
    grid = grid_of({}, tamper=altered(VICTIM, change))
    with pytest.raises(ClientError, match=f"update of client {VICTIM} in round 1 was refused: .*{reason}"):
        FedPart(federation).run(grid, 1)
    assert federation.round == 0
    assert torch.equal(federation.w, w)
    assert torch.equal(federation.psi, psi)
    assert federation.optimiser.state_dict() == [{}, {}, {}]

    skipping = {"on_client_error": "skip"}
    federation, reports = run(1, skipping, tamper=altered(VICTIM, change))
    assert [skip["client"] for skip in reports[0].skipped] == [VICTIM]
    assert f"client {VICTIM} in round 1 was refused" in reports[0].skipped[0]["reason"]
    without, _ = run(1, skipping, tamper=lambda reply: None if sender(reply) == VICTIM else reply)
    assert torch.equal(federation.w, without.w)
    assert torch.equal(federation.psi, without.psi)


def sender(reply):
    return reply.content["config"]["client"] if reply.has_content() else None


def test_refused_uploads_are_not_changed():
    seen = []

    def keep(reply):
        seen.append((reply, message_to_proto(reply).SerializeToString(deterministic=True)))
        return reply

    grid = grid_of({}, tamper=keep)
    replies = []
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: replies.extend(pull(ids)) or replies[-len(ids) :]
    run(1, grid=grid)
    trained = [reply for reply in replies if reply.metadata.message_type == "train"]
    forms = {
        reply.metadata.message_id: message_to_proto(reply).SerializeToString(deterministic=True)
        for reply in trained
    }
    assert forms == {reply.metadata.message_id: form for reply, form in seen}


def test_local_engine_and_strategy_skip_alike():
    config = {"failing": VICTIM, "on_client_error": "skip"}
    flower, engine = run(2, config), local(2, **config)
    assert [skip["client"] for skip in flower[1][0].skipped] == [VICTIM]
    for _, reports in (flower, engine):
        for report in reports:
            report.skipped.clear()  # the words differ
    assert_equal_runs(flower, engine)


def test_round_without_any_update_changes_nothing():
    federation, reports = run(2, {"on_client_error": "skip"}, tamper=lambda reply: None)
    fresh = Federation(federation.protocol)
    assert federation.round == 2
    assert torch.equal(federation.w, fresh.w)
    assert reports[0].train_loss is None
    assert len(reports[0].skipped) == 5
    assert "did not answer in round 1 before the timeout" in reports[0].skipped[0]["reason"]


def test_replies_that_answer_nothing_or_twice():
    grid = grid_of({})
    pull = grid.pull_messages

    def twice(ids):
        replies = pull(ids)
        return [*replies, *(reply for reply in replies if sender(reply) == VICTIM and is_train(reply))]

    def is_train(reply):
        return reply.metadata.message_type == "train"

    def stray(ids):
        replies = pull(ids)
        question = next(m for m in grid.sent if m.metadata.message_type == "query")
        return (
            [*replies, Message(RecordDict(), reply_to=question)]
            if replies and is_train(replies[0])
            else replies
        )

    grid.pull_messages = twice
    with pytest.raises(
        ClientError, match=f"update of client {VICTIM} in round 1 was refused: it came more than once"
    ):
        run(1, grid=grid)
    assert_equal_runs(run(1, {"on_client_error": "skip"}, grid=grid), local(1))  # its first answer counts
    grid.pull_messages = stray
    assert_equal_runs(run(1, grid=grid), local(1))


def test_every_node_is_asked_once():
    grid = grid_of({})
    run(3, grid=grid)
    asked = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "query"]
    assert sorted(asked) == sorted(grid.nodes)


@pytest.mark.parametrize(
    ("node_config", "reason"),
    [
        ({"partition-id": 3, "num-partitions": 12}, "both say that they are client 3"),
        (
            {"partition-id": 12, "num-partitions": 12},
            "says that it is client 12; clients are numbered 0 to 11",
        ),
        ({"partition-id": -1, "num-partitions": 12}, "says that it is client -1"),
        ({}, "start it with --node-config"),
    ],
)
def test_node_that_does_not_belong(node_config, reason):
    grid = grid_of({})
    grid.join(node_config)
    with pytest.raises(NodesError, match=reason):
        run(1, grid=grid)
    assert_equal_runs(run(1, {"on_client_error": "skip"}, grid=grid), local(1, on_client_error="skip"))


def test_node_that_comes_back_under_a_new_id_keeps_its_chunk():
    grid = grid_of({})
    federation, reports = Federation(build({}).protocol), []
    strategy = FedPart(federation, on_round=reports.append)
    strategy.run(grid, 2)
    for client in range(CLIENTS):
        old = grid.leave(client)
        new = grid.join({"partition-id": client, "num-partitions": CLIENTS})
        assert new != old
    strategy.run(grid, 4)
    assert_equal_runs((federation, reports), local(4))


def test_absent_clients():
    grid = grid_of({"on_client_error": "skip"})
    federation, reports = Federation(build({"on_client_error": "skip"}).protocol), []
    strategy = FedPart(federation, on_round=reports.append)
    strategy.run(grid, 1)
    gone = federation.protocol.cohort(2)[0]
    grid.leave(gone)
    strategy.run(grid, 2)  # a lenient run draws from those that are there
    there = [client for client in range(CLIENTS) if client != gone]
    assert reports[1].cohort == federation.protocol.cohort(2, there)

    grid = grid_of({})
    federation = Federation(build({}).protocol)
    strategy = FedPart(federation)
    strategy.run(grid, 1)
    grid.leave(gone)
    with pytest.raises(NodesError, match=f"missing: {gone}"):  # a strict one waits for its cohort
        strategy.run(grid, 2)


def test_anybody_who_comes_back_first_is_enough_when_all_have_gone():
    config = {"on_client_error": "skip", "node_timeout": 1000.0}
    grid = grid_of(config)
    federation, reports = Federation(build(config).protocol), []
    strategy = FedPart(federation, on_round=reports.append)
    strategy.run(grid, 1)
    for client in range(CLIENTS):
        grid.leave(client)
    outsider = next(client for client in range(CLIENTS) if client not in federation.protocol.cohort(2))
    online = grid.get_node_ids

    def back_at_the_second_look():
        grid.get_node_ids = online
        grid.join({"partition-id": outsider, "num-partitions": CLIENTS})
        return set()

    grid.get_node_ids = back_at_the_second_look
    strategy.run(grid, 2)
    assert reports[1].cohort == [outsider]


def test_skip_goes_on_without_missing_clients_and_takes_in_late_ones():
    config = {"on_client_error": "skip"}
    grid = grid_of(config)
    gone = 4
    grid.leave(gone)
    late = grid.join({"partition-id": CLIENTS, "num-partitions": CLIENTS + 1})
    federation, reports = Federation(build(config).protocol), []
    FedPart(federation, on_round=reports.append).run(grid, 3)
    there = [*(client for client in range(CLIENTS) if client != gone), CLIENTS]
    for report in reports:
        assert report.cohort == federation.protocol.cohort(report.round, there)
    assert late in grid.nodes and federation.protocol.chunk(CLIENTS) in (1, 2, 3)


def test_late_nodes_are_waited_for(monkeypatch):
    monkeypatch.setattr("fedpart.flower.nodes.POLL_SECONDS", 0.0)
    grid = grid_of({})
    online, late = grid.get_node_ids, [3, 8]
    for client in late:
        grid.leave(client)

    def one_more_each_time():
        if late:
            grid.join({"partition-id": late.pop(), "num-partitions": CLIENTS})
        return online()

    monkeypatch.setattr(grid, "get_node_ids", one_more_each_time)
    federation, reports = Federation(build({"node_timeout": 60.0}).protocol), []
    FedPart(federation, on_round=reports.append).run(grid, 1)
    assert_equal_runs((federation, reports), local(1))


@pytest.mark.parametrize(("chunks", "ratio"), [((0.7, 0.2, 0.1), 0.77), ((0.9, 0.1), 0.91)])
def test_upload_over_all_clients_is_the_expected_ratio(chunks, ratio):
    task = Task(torch.nn.Linear(99, 10))  # 1,000 weights, no psi
    protocol = Protocol(task, FederationSettings(clients=100, chunks=chunks))
    numbers = sum(upload_numbers(protocol, client, protocol.plan(client, 1)) for client in range(100))
    assert numbers == round(ratio * 1000 * 100)
    assert expected_upload_ratio(protocol) == pytest.approx(ratio, abs=1e-12)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("ValueError: boom", "ValueError: boom"),
        ("<class 'ValueError'>:<'client boom'>", "ValueError: client boom"),
        (
            "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::Actor.run()\x1b[39m "
            '(pid=7)\n  File "x.py", line 3, in run\nValueError: boom\n\nThe above exception was the direct '
            "cause of the following exception:\n\nflwr.clientapp.client_app.ClientAppException: \n"
            "Exception ClientAppException occurred. Message: boom at home'>",
            "boom at home",
        ),
        ("", "its node is gone"),
    ],
)
def test_cause_is_one_line(reason, expected):
    assert cause(Error(5, reason)) == expected


def test_values_that_are_loaded_before_a_run_are_those_that_clients_get():
    runs = []
    for asked in (False, True):
        federation = Federation(build({}).protocol)
        strategy = FedPart(federation)
        if asked:
            strategy.initial_arrays()
        federation.w.mul_(0.5)
        strategy.run(grid_of({}), 1)
        runs.append(federation.w)
    assert torch.equal(*runs)
