"""Replies out of a SuperLink: whatever a registered node pushes, the round goes on with the others."""

import copy
import time
from datetime import timedelta

import pytest
import torch
from flower_experiment import CLIENTS, app, assert_equal_runs, build, local
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import PushObjectResponse
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from inprocess_grid import InProcessGrid
from malformed import forge
from superlink import Link

from fedpart import ClientError, Federation
from fedpart.flower.strategy import FedPart
from fedpart.flower.workarounds.grid import GuardedGrid
from fedpart.flower.workarounds.objects import UNREADABLE

SKIP = {"on_client_error": "skip", "round_timeout": 0.5}
VICTIM = build({}).protocol.cohort(1)[2]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("flwr.superlink.grid.http_grid.time.sleep", lambda seconds: None)


def link(change=None, config=SKIP):
    """``change(link, reply)`` changes replies of the victim; it may return another root."""
    nodes = InProcessGrid(app, CLIENTS, config)

    def tamper(reply):
        if reply.has_content() and reply.content["config"]["client"] == VICTIM:
            return change(made, reply)
        return None

    made = Link(nodes, tamper if change else None)
    return made


def run(rounds, made, config=SKIP):
    federation, reports = Federation(build(config).protocol), []
    FedPart(federation, on_round=reports.append).run(made.grid(), rounds)
    return federation, reports


def another_body(name):
    def change(made, reply):
        forge(
            {"message": reply, "content": reply.content}.get(name) or reply.content[name],
            lambda body: b"\xff\x00",
        )

    return change


def another_root(made, reply):
    return RecordDict({"config": ConfigRecord({"number": 1})})


def bomb(made, reply):
    """An array of one chunk, many times."""
    forge(
        reply.content["arrays"]["w"], lambda body: body.replace(b"[0]", b"[%s]" % b",".join([b"0"] * 10**6))
    )


def large(made, reply):
    reply.content["config"]["more"] = b"0" * 2**21


def many(made, reply):
    for number in range(20):
        reply.content[str(number)] = ConfigRecord({"number": number})


def announced_only(made, reply):
    made.held.add(reply.content["arrays"]["w"].object_id)


UNREAD = {
    **{name: another_body(name) for name in ("message", "content", "arrays", "config", "metrics")},
    "root": another_root,
    "bomb": bomb,
    "large": large,
    "many": many,
}


@pytest.mark.parametrize("kind", UNREAD)
def test_a_reply_that_cannot_be_read_costs_one_client_one_round(kind):
    made = link(UNREAD[kind])
    federation, (report,) = run(1, made)
    (skip,) = report.skipped
    assert (skip["client"], skip["category"]) == (VICTIM, "malformed")
    assert report.refused == {"malformed": 1} and report.replies == 4
    nodes = InProcessGrid(app, CLIENTS, SKIP, tamper=lambda reply: None if sender(reply) == VICTIM else reply)
    without = Federation(federation.protocol)
    FedPart(without).run(nodes, 1)
    assert torch.equal(federation.w, without.w)
    assert len(made.confirmed) == CLIENTS + 5, "the SuperLink may delete all replies"

    with pytest.raises(ClientError, match=f"update of client {VICTIM} in round 1 was refused: it "):
        run(1, link(UNREAD[kind], {}), {})


def sender(reply):
    return reply.content["config"]["client"]


@pytest.mark.parametrize("kind", ["message", "content", "arrays", "config", "metrics", "root"])
def test_flowers_own_grid_raises_on_them(kind, monkeypatch):
    """If it no longer does, there is less to guard."""
    monkeypatch.setattr(
        GuardedGrid, "pull_messages", lambda grid, ids: super(GuardedGrid, grid).pull_messages(ids)
    )
    with pytest.raises(Exception, match=r".") as raised:
        run(1, link(UNREAD[kind]))
    assert not isinstance(raised.value, ClientError)


def test_the_rounds_of_a_superlink_are_those_of_the_local_engine():
    assert_equal_runs(run(3, link()), local(3))


def test_objects_that_do_not_come_hold_no_round_up_and_those_that_come_late_are_taken():
    _, (report,) = run(1, link(announced_only))
    assert [(skip["client"], skip["category"]) for skip in report.skipped] == [(VICTIM, "no_answer")]

    patient = {**SKIP, "round_timeout": 600.0}
    made = link(announced_only, patient)
    pull = made.PullObject

    def after_one_more_look(request):
        answer = pull(request)
        made.held.discard(request.object_id)
        return answer

    made.PullObject = after_one_more_look
    assert_equal_runs(run(1, made, patient), local(1))


def test_an_object_that_a_superlink_stored_before_it_ended_does_not_end_the_run():
    """Flower pushes it again after the restart, and is told that it is not stored."""
    made = link()
    push = made.PushObject

    def stored_at_the_first_attempt(request):
        push(request)
        return PushObjectResponse(stored=False)

    made.PushObject = stored_at_the_first_attempt
    with pytest.raises(ObjectPushError):  # if it no longer does, there is less to guard
        made.grid().push_messages([Message(RecordDict(), 1, "train")])
    assert_equal_runs(run(2, made), local(2))


LOSING = {"on_client_error": "skip"}


class Losing:
    """Announces the victim's first replies, whose objects vanish then, as they do in a SuperLink in time."""

    def __init__(self, times):
        self.times, self.gone, self.seen = times, set(), 0

    def __call__(self, made, reply):
        self.seen += 1
        if self.seen <= self.times:
            self.gone.add(reply.object_id)

    def link(self):
        made = link(self, LOSING)
        pull = made.PullObject

        def without(request):
            if request.object_id in self.gone:
                made.objects.pop(request.object_id, None)
            return pull(request)

        made.PullObject = without
        return made


def test_a_message_whose_reply_is_lost_is_sent_again():
    losing = Losing(1)
    assert_equal_runs(run(1, losing.link(), LOSING), local(1))
    assert losing.seen == 2


def test_flowers_own_grid_does_not_send_it_again(monkeypatch):
    """If it does, there is less to guard."""
    monkeypatch.setattr("fedpart.flower.strategy.guarded", lambda grid, limit: grid)
    losing = Losing(1)
    _, (report,) = run(1, losing.link(), LOSING)
    assert losing.seen == 1 and [skip["client"] for skip in report.skipped] == [VICTIM]


def test_it_is_sent_again_once():
    losing = Losing(5)
    _, (report,) = run(1, losing.link(), LOSING)
    (skip,) = report.skipped
    assert (skip["client"], skip["category"]) == (VICTIM, "client_error") and losing.seen == 2
    assert "could not be found" in skip["reason"]


def expiries(made):
    """Moments, in seconds, at which the messages to come of a round expire."""
    push, found = made.PushMessages, []

    def note(request):
        sent = [one.metadata for one in request.messages_list if one.metadata.message_type == "train"]
        found.extend(one.created_at + one.ttl for one in sent)
        return push(request)

    made.PushMessages = note
    return found


def test_what_is_sent_again_expires_when_the_first_does(monkeypatch):
    losing = Losing(1)
    made = losing.link()
    found, later, pull = expiries(made), [timedelta(0)], made.PullObject
    monkeypatch.setattr("fedpart.flower.workarounds.grid.now", lambda: now() + later[0])

    def after_ten_minutes(request):
        if request.object_id in losing.gone:
            later[0] = timedelta(minutes=10)
        return pull(request)

    made.PullObject = after_ten_minutes  # messages get their times from the true clock
    run(1, made, LOSING)
    assert losing.seen == 2 and found[-1] < max(found[:-1]) - 590


@pytest.mark.parametrize(
    "clock", ["fedpart.flower.workarounds.grid.time.monotonic", "fedpart.flower.workarounds.grid.now"]
)
def test_nothing_is_sent_again_after_the_timeout_or_its_expiry(clock, monkeypatch):
    losing = Losing(1)
    made = losing.link()
    true = {
        "fedpart.flower.workarounds.grid.time.monotonic": time.monotonic,
        "fedpart.flower.workarounds.grid.now": now,
    }[clock]
    hours = 2 * 3600 if true is time.monotonic else timedelta(hours=2)
    monkeypatch.setattr(clock, lambda: true() + hours if losing.gone else true())
    _, (report,) = run(1, made, LOSING)
    (skip,) = report.skipped
    assert (skip["client"], skip["category"]) == (VICTIM, "client_error") and losing.seen == 1


def test_what_nobody_has_asked_for_is_not_read():
    """A node can address the server as only the server should; that arrives beside the replies of others."""
    made = link()
    answer = made.answer

    def with_another(tree):
        proto, reply = answer(tree)
        if proto.metadata.message_type == "train" and not made.unasked:
            other = copy.deepcopy(proto)
            other.metadata.reply_to_message_id = ""
            other.metadata.message_id = "0" * 64  # there is no such object
            made.unasked.append((other, reply))
        return proto, reply

    made.answer = with_another
    federation, reports = run(1, made)
    assert reports[0].refused == {"late": 1}
    assert_equal_runs((federation, reports), local(1))


def test_a_reply_answers_what_the_superlink_says():
    def claims_another(made, reply):
        forge(
            reply,
            lambda body: (
                Message(metadata=other(reply.metadata), content=RecordDict()).deflate().split(b"\0", 1)[1]
            ),
        )

    def other(metadata):
        changed = copy.deepcopy(metadata)
        changed.__dict__["_reply_to_message_id"] = "0" * 64
        return changed

    assert_equal_runs(run(1, link(claims_another)), local(1))


def test_an_error_of_a_client_stays_what_it_is():
    config = {**SKIP, "failing": VICTIM}
    _, (report,) = run(1, link(config=config), config)
    (skip,) = report.skipped
    assert skip["category"] == "client_error" and "the disk of this client is gone" in skip["reason"]
    assert UNREADABLE not in range(100), "Flower's own"
