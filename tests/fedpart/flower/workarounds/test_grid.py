"""Replies out of a SuperLink: whatever a registered node pushes, the round goes on with the others."""

import copy
from datetime import UTC, datetime
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest
import torch
from flower_experiment import CLIENTS, app, assert_equal_runs, build, deployed, expected
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import PushObjectResponse
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from inprocess_grid import InProcessGrid
from malformed import forge
from superlink import Link

from fedpart import ClientError
from fedpart.flower.workarounds.objects import RECORD_BYTES, UNREADABLE

SKIP = {"on_client_error": "skip", "round_timeout": 600.0}
VICTIM = build({}).protocol.cohort(1)[2]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The time of grids and messages: it passes while grids sleep, and not otherwise."""
    slept = [0.0]
    made = SimpleNamespace(time=lambda: sum(slept), monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("flwr.app.message.message.now", lambda: datetime.fromtimestamp(sum(slept), UTC))
    for place in ("superlink.grid.http_grid", "supercore.inflatable.inflatable_utils"):
        monkeypatch.setattr(f"flwr.{place}.time", made)
    monkeypatch.setattr("fedpart.flower.workarounds.grid.time", made)
    return made


@pytest.fixture
def flowers_own(monkeypatch):
    """Nothing is guarded; where a test with this fails, there is less to guard."""
    monkeypatch.setattr("fedpart.flower.strategy.guarded", lambda grid, limit: grid)


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
    return deployed(rounds, config, made.grid())


def another_body(name):
    def change(made, reply):
        part = {"message": reply, "content": reply.content}.get(name) or reply.content[name]
        forge(part, lambda body: b"\xff\x00")

    return change


def another_root(made, reply):
    return RecordDict({"config": ConfigRecord({"number": 1})})


def bomb(made, reply):
    """An array of one chunk, many times."""
    many = b"[%s]" % b",".join([b"0"] * 10**6)
    forge(reply.content["arrays"]["w"], lambda body: body.replace(b"[0]", many))


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


@pytest.fixture(scope="module")
def without():
    """After a round in which the victim does not answer."""
    return deployed(1, SKIP, tamper=lambda reply: None if sender(reply) == VICTIM else reply)[0]


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", UNREAD)
def test_a_reply_that_cannot_be_read_costs_one_client_one_round(kind, without):
    made = link(UNREAD[kind])
    federation, (report,) = outcome = run(1, made)
    assert_skipped(outcome, "malformed")
    assert report.refused == {"malformed": 1} and report.replies == 4
    assert torch.equal(federation.w, without.w)
    assert len(made.confirmed) == CLIENTS + 5, "the SuperLink may delete all replies"

    with pytest.raises(ClientError, match=f"update of client {VICTIM} in round 1 was refused: it "):
        run(1, link(UNREAD[kind], {}), {})


def assert_skipped(outcome, category):
    """Why the victim alone is left out of a round."""
    (report,) = outcome[1]
    (skip,) = report.skipped
    assert (skip["client"], skip["category"]) == (VICTIM, category)
    return skip["reason"]


def sender(reply):
    return reply.content["config"]["client"]


def test_keys_without_end_are_refused_by_their_size(monkeypatch):
    """Nothing is made of them: who reads them raises."""
    read = ConfigRecord.inflate

    def inflate(content, children=None):
        assert len(content) <= RECORD_BYTES
        return read(content, children)

    monkeypatch.setattr(ConfigRecord, "inflate", inflate)
    keys = b'":{"sint64":1},"'.join(b"%d" % number for number in range(40_000))
    many = b'{"%s":{"sint64":1}}' % keys

    def change(made, reply):
        reply.content["config"]["k"] = 1
        forge(reply.content["config"], lambda body: many)

    assert "beside its arrays" in assert_skipped(run(1, link(change)), "malformed")


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["message", "content", "arrays", "config", "metrics", "root"])
def test_flowers_own_grid_raises_on_them(kind, flowers_own):
    with pytest.raises(Exception, match=r".") as raised:
        run(1, link(UNREAD[kind]))
    assert not isinstance(raised.value, ClientError)


def test_the_rounds_of_a_superlink_are_those_of_the_local_engine():
    assert_equal_runs(run(2, link()), expected(2))


def after_one_more_look(clock, seconds):
    """A link to which an object comes after that time."""
    made = link(announced_only)
    pull = made.PullObject

    def look(request):
        answer = pull(request)
        made.held.discard(request.object_id)
        clock.sleep(0 if answer.object_available else seconds)
        return answer

    made.PullObject = look
    return made


@pytest.mark.slow
def test_objects_that_do_not_come_hold_no_round_up_and_those_that_come_late_are_taken(clock):
    assert_skipped(run(1, link(announced_only)), "no_answer")
    assert_equal_runs(run(1, after_one_more_look(clock, 5)), expected(1))


@pytest.mark.slow
def test_flowers_own_grid_waits_for_them_beyond_the_timeout(flowers_own, clock):
    assert_equal_runs(run(1, after_one_more_look(clock, 7000)), expected(1))


def stored_before_it_ended():
    """A link to which objects are pushed again, and which says that it does not store them."""
    made = link()
    push = made.PushObject
    made.PushObject = lambda request: push(request) and PushObjectResponse(stored=False)
    return made


def test_an_object_that_a_superlink_stored_before_it_ended_does_not_end_the_run():
    assert_equal_runs(run(1, stored_before_it_ended()), expected(1))


def test_flowers_own_grid_ends_the_run_at_such_an_object(flowers_own):
    with pytest.raises(ObjectPushError):
        run(1, stored_before_it_ended())


class Losing:
    """Announces the victim's first replies, whose objects vanish then, as they do in a SuperLink in time."""

    def __init__(self, times):
        self.times, self.gone, self.seen = times, set(), 0

    def __call__(self, made, reply):
        self.seen += 1
        if self.seen <= self.times:
            self.gone.add(reply.object_id)

    def link(self):
        made = link(self)
        pull = made.PullObject

        def without(request):
            if request.object_id in self.gone:
                made.objects.pop(request.object_id, None)
            return pull(request)

        made.PullObject = without
        return made


def test_a_message_whose_reply_is_lost_is_sent_again():
    losing = Losing(1)
    assert_equal_runs(run(1, losing.link()), expected(1))
    assert losing.seen == 2


def test_flowers_own_grid_does_not_send_it_again(flowers_own):
    losing = Losing(1)
    _, (report,) = run(1, losing.link())
    assert losing.seen == 1 and [skip["client"] for skip in report.skipped] == [VICTIM]


def test_it_is_sent_again_once():
    losing = Losing(5)
    assert "could not be found" in assert_skipped(run(1, losing.link()), "client_error")
    assert losing.seen == 2


def test_a_message_whose_clientapp_dies_is_sent_again():
    made, died = link(), []
    answer = made.nodes._answer

    def dies_once(instruction):
        reply = answer(instruction)
        if died or reply.metadata.message_type != "train" or reply.content["config"]["client"] != VICTIM:
            return reply
        died.append(instruction)
        return Message(Error(ErrorCode.CLIENT_APP_CRASHED, "it has ended"), reply_to=instruction)

    made.nodes._answer = dies_once
    assert_equal_runs(run(1, made), expected(1))
    assert len(died) == 1


def expiries(made):
    """Moments, in seconds, at which the messages to come of a round expire."""
    push, found = made.PushMessages, []

    def note(request):
        sent = [one.metadata for one in request.messages_list if one.metadata.message_type == "train"]
        found.extend(one.created_at + one.ttl for one in sent)
        return push(request)

    made.PushMessages = note
    return found


def test_what_is_sent_again_expires_when_the_first_does(clock):
    losing = Losing(1)
    made = losing.link()
    found, pull = expiries(made), made.PullObject

    def after_five_minutes(request):
        clock.sleep(300 if request.object_id in losing.gone else 0)
        return pull(request)

    made.PullObject = after_five_minutes
    run(1, made)
    assert losing.seen == 2 and len(found) == 6 and set(map(round, found)) == {660}


@pytest.mark.parametrize("name", ["time.monotonic", "time.time"])
def test_nothing_is_sent_again_after_the_timeout_or_its_expiry(name, monkeypatch):
    losing = Losing(1)
    made = losing.link()
    place = f"fedpart.flower.workarounds.grid.{name}"
    before = resolve_name(place)
    monkeypatch.setattr(place, lambda: before() + 7200 if losing.gone else before())
    assert_skipped(run(1, made), "client_error")
    assert losing.seen == 1


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
    assert_equal_runs((federation, reports), expected(1))


def claims_another(made, reply):
    metadata = copy.deepcopy(reply.metadata)
    metadata.__dict__["_reply_to_message_id"] = "0" * 64
    other = Message(metadata=metadata, content=RecordDict()).deflate()
    forge(reply, lambda body: other.split(b"\0", 1)[1])


def test_a_reply_answers_what_the_superlink_says():
    assert_equal_runs(run(1, link(claims_another)), expected(1))


def test_flowers_own_grid_believes_what_it_says_itself(flowers_own):
    assert_skipped(run(1, link(claims_another)), "no_answer")


def test_an_error_of_a_client_stays_what_it_is():
    config = {**SKIP, "failing": VICTIM}
    reason = assert_skipped(run(1, link(config=config), config), "client_error")
    assert "the disk of this client is gone" in reason
    assert UNREADABLE not in range(100), "Flower's own"
