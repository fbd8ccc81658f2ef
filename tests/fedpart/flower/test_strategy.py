from functools import partial

import numpy as np
import pytest
import refusals
import torch
from flower_experiment import CLIENTS, app, assert_equal_runs, build, deployed, expected, local
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from inprocess_grid import InProcessGrid
from problems import upload_numbers

from fedpart import ClientError, Federation
from fedpart.federated.cohorts import DOWNLOAD_HEADER, UPLOAD_HEADER, state_bytes
from fedpart.flower.messages import cause
from fedpart.flower.nodes import NodesError
from fedpart.flower.strategy import FedPart
from fedpart.flower.workarounds.objects import message_bytes


def grid_of(config, **options):
    return InProcessGrid(app, CLIENTS, config, **options)


def started(config):
    """A strategy, and the reports that it will make."""
    reports = []
    return FedPart(Federation(build(config).protocol), on_round=reports.append), reports


def sender(reply):
    return reply.content["config"]["client"] if reply.has_content() else None


def altered(client, change):
    """Changes one client's replies: ``change(content)``."""

    def tamper(reply):
        if sender(reply) == client:
            change(reply.content)
        return reply

    return tamper


def puts(record, **values):
    return lambda content: content[record].update(values)


def puts_w(make):
    return lambda content: content["arrays"].update(w=Array(make(content["arrays"]["w"].numpy())))


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", ["partitioned", "fedavg", "augerino", "fedex"])
def test_strategy_equals_the_local_engine(method):
    found = deployed(3, {"method": method})
    assert_equal_runs(found, local(3, method=method))
    assert all(report.client_seconds > 0 for report in found[1])


def test_strategy_continues_where_the_federation_is():
    federation, before = local(1)
    _, after = deployed(3, federation=federation)
    assert_equal_runs((federation, before + after), local(3))


def test_start_takes_initial_arrays_and_returns_the_last():
    strategy = FedPart(Federation(build({}).protocol))
    evaluated, arrays = [], strategy.initial_arrays()
    result = strategy.start(grid_of({}), arrays, 2, evaluate_fn=lambda round, _: evaluated.append(round))
    assert np.array_equal(result.arrays["w"].numpy(), strategy.federation.w.numpy())
    assert evaluated == [0, 1, 2]
    assert result.train_metrics_clientapp[2]["upload-bytes"] > 0


def test_bytes_are_those_of_the_serialised_messages():
    config = {"width": 400}  # 58 thousand weights
    grid = grid_of(config)
    federation, reports = deployed(3, config, grid)
    assert len(federation.w) > 50_000
    queries = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "query"]
    assert sorted(queries) == sorted(grid.nodes), "every node is asked once who it is"
    assert sum(report.upload_bytes for report in reports) == grid.bytes_up
    assert sum(report.download_bytes for report in reports) == grid.bytes_down
    protocol = federation.protocol
    asked = [(client, report.round) for report in reports for client in report.cohort]
    predicted = sum(4 * upload_numbers(protocol, client, protocol.plan(client, r)) for client, r in asked)
    sent = [client for client, _ in asked]
    states = sum(map(partial(state_bytes, protocol), sent))
    assert (grid.bytes_up - predicted) / len(sent) == pytest.approx(UPLOAD_HEADER, abs=45)
    assert (grid.bytes_down - states) / len(sent) == pytest.approx(DOWNLOAD_HEADER, abs=45)
    _, estimated = local(3, **config)
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


VICTIM = build({}).protocol.cohort(1)[2]
UNREADABLE = "its array w cannot be read"
BAD = {  # of updates and headers one each: test_federated_refusals.py has them all
    "length": (puts_w(lambda w: w[:-1]), "w has shape"),
    "bytes": (puts("arrays", w=Array("float32", (3,), "numpy.ndarray", b"junk")), UNREADABLE),
    "pickle": (puts("arrays", w=Array("float32", (3,), "pickle", b"junk")), UNREADABLE),
    "round": (puts("config", round=9), "its round is 9 where 1 is expected"),
    "examples": (puts("metrics", examples=0), "claims 0 examples"),
    "metrics": (lambda content: content.pop("metrics"), "it has no MetricRecord 'metrics'"),
    "config": (lambda content: content.update(config=MetricRecord()), "it has no ConfigRecord"),
}


def test_bad_uploads_are_refused_and_touch_nothing():
    federation = Federation(build({}).protocol)
    w, psi = federation.w.clone(), federation.psi.clone()
    refused = f"update of client {VICTIM} in round 1 was refused: .*"
    rows = []
    for kind, (change, reason) in BAD.items():
        run = partial(deployed, 1, federation=federation, tamper=altered(VICTIM, change))
        rows.append((kind, run, ClientError, refused + reason))
    refusals.check(rows)
    assert federation.round == 0 and torch.equal(federation.w, w) and torch.equal(federation.psi, psi)
    assert federation.optimiser.state_dict() == [{}, {}, {}]


def test_a_run_that_skips_goes_on_as_without_a_client_whose_upload_is_bad():
    config = {"on_client_error": "skip"}
    federation, reports = deployed(1, config, tamper=altered(VICTIM, BAD["length"][0]))
    (skip,) = reports[0].skipped
    assert skip["client"] == VICTIM and f"client {VICTIM} in round 1 was refused" in skip["reason"]
    without, _ = deployed(1, config, tamper=lambda reply: None if sender(reply) == VICTIM else reply)
    assert torch.equal(federation.w, without.w) and torch.equal(federation.psi, without.psi)


def test_replies_are_read_and_not_changed():
    grid, seen = grid_of({}), []
    pull = grid.pull_messages

    def form(reply):
        return message_to_proto(reply).SerializeToString(deterministic=True)

    def keep(ids):
        replies = pull(ids)
        seen.extend((reply, form(reply)) for reply in replies)
        return replies

    grid.pull_messages = keep
    deployed(1, grid=grid)
    assert len(seen) > 5 and all(form(reply) == before for reply, before in seen)


def test_local_engine_and_strategy_skip_alike():
    config = {"failing": VICTIM, "on_client_error": "skip"}
    flower, engine = deployed(2, config), local(2, **config)
    assert [skip["client"] for skip in flower[1][0].skipped] == [VICTIM]
    for _, reports in (flower, engine):
        for report in reports:
            report.skipped.clear()  # the words differ
    assert_equal_runs(flower, engine)


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
        late = [Message(RecordDict(), reply_to=question)] if replies and is_train(replies[0]) else []
        return [*replies, *late]

    grid.pull_messages = twice
    twice_in_round_1 = f"update of client {VICTIM} in round 1 was refused: it came more than once"
    with pytest.raises(ClientError, match=twice_in_round_1):
        deployed(1, grid=grid)
    # its first answer counts
    assert_equal_runs(deployed(1, {"on_client_error": "skip"}, grid), expected(1))
    grid.pull_messages = stray
    assert_equal_runs(deployed(1, grid=grid), expected(1))


def test_nodes_that_do_not_belong():
    rows, joined = [], grid_of({})
    for number, says in (
        (3, "both say that they are client 3"),
        (12, "is client 12; clients are numbered 0 to 11"),
        (-1, "says that it is client -1"),
        (None, "start it with --node-config"),
    ):
        node = {} if number is None else {"partition-id": number, "num-partitions": 12}
        grid = grid_of({})
        for each in (grid, joined):
            each.join(node)
        rows.append((says, partial(deployed, 1, grid=grid), NodesError, says))
    refusals.check(rows)
    assert_equal_runs(deployed(1, {"on_client_error": "skip"}, joined), expected(1))


def test_node_that_comes_back_under_a_new_id_keeps_its_chunk():
    grid = grid_of({})
    strategy, reports = started({})
    strategy.run(grid, 1)
    for client in range(CLIENTS):
        old = grid.leave(client)
        new = grid.join({"partition-id": client, "num-partitions": CLIENTS})
        assert new != old
    strategy.run(grid, 3)
    assert_equal_runs((strategy.federation, reports), expected(3))


def test_absent_clients():
    config = {"on_client_error": "skip"}
    grid, (strategy, reports) = grid_of(config), started(config)
    strategy.run(grid, 1)
    gone = strategy.federation.protocol.cohort(2)[0]
    grid.leave(gone)
    strategy.run(grid, 2)  # a lenient run draws from those that are there
    there = [client for client in range(CLIENTS) if client != gone]
    assert reports[1].cohort == strategy.federation.protocol.cohort(2, there)

    grid, (strategy, _) = grid_of({}), started({})
    strategy.run(grid, 1)
    grid.leave(gone)
    with pytest.raises(NodesError, match=f"missing: {gone}"):  # a strict one waits for its cohort
        strategy.run(grid, 2)


def test_anybody_who_comes_back_first_is_enough_when_all_have_gone():
    config = {"on_client_error": "skip", "node_timeout": 1000.0}
    grid, (strategy, reports) = grid_of(config), started(config)
    strategy.run(grid, 1)
    for client in range(CLIENTS):
        grid.leave(client)
    cohort = strategy.federation.protocol.cohort(2)
    outsider = next(client for client in range(CLIENTS) if client not in cohort)
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
    federation, reports = deployed(3, config, grid)
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
    assert_equal_runs(deployed(1, {"node_timeout": 60.0}, grid), expected(1))


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
        strategy, _ = started({})
        if asked:
            strategy.initial_arrays()
        strategy.federation.w.mul_(0.5)
        strategy.run(grid_of({}), 1)
        runs.append(strategy.federation.w)
    assert torch.equal(*runs)
