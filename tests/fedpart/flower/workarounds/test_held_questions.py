"""Our SuperLink: who asks for messages is answered when a whole one is there."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from flwr.proto.message_pb2 import ObjectTree

from fedpart.flower.workarounds import superlink
from fedpart.flower.workarounds.superlink import Arrivals, whose

LOOP = asyncio.Runner()  # a SuperLink has one
NODE, SERVER = (7, 0), (1, 99)


def message(id, to, run=99):
    return SimpleNamespace(metadata=SimpleNamespace(message_id=id, dst_node_id=to, run_id=run))


def tree(id, *parts):
    return ObjectTree(object_id=id, children=[ObjectTree(object_id=part) for part in parts])


@pytest.fixture
def arrivals():
    return Arrivals()


def waits(arrivals, *whom, seconds=0.01, meanwhile=lambda: None):
    """Who is told within so many seconds; ``meanwhile`` happens elsewhere once all of them wait."""

    async def told(who):
        begun = time.monotonic()
        sure = await arrivals.wait(who, seconds)
        early = time.monotonic() - begun < seconds
        assert not (early and sure) or arrivals._over, "there may be something"
        return early

    async def together():
        asking = [asyncio.create_task(told(who)) for who in whom]
        await asyncio.sleep(0)
        await asyncio.to_thread(meanwhile)
        return await asyncio.gather(*asking)

    return LOOP.run(together())


def test_a_message_is_for_a_node_and_a_reply_for_the_server_of_its_run():
    assert whose(message("a", 7)) == NODE
    assert whose(message("b", 1)) == SERVER


def announced(arrivals, *pairs, known=()):
    """Messages with their trees are pushed to a SuperLink that has the ``known`` objects."""
    messages, trees = zip(*pairs, strict=True)
    ids = {part.object_id for each in trees for part in (each, *each.children)} - {*known}
    request = SimpleNamespace(messages_list=messages, message_object_trees=trees)
    arrivals.announcing(lambda request: SimpleNamespace(objects_to_push=list(ids)))(request)


def came(arrivals, id):
    stored = arrivals.noting(lambda request: SimpleNamespace(stored=True))
    stored(SimpleNamespace(object_id=id))


def test_what_is_refused_is_not_waited_for(arrivals):
    pushed = SimpleNamespace(messages_list=[message("made up", 7)], message_object_trees=[tree("made up")])
    announced(arrivals, (message("b", 7), tree("b")), known={"b"})
    with pytest.raises(ZeroDivisionError):
        arrivals.announcing(lambda request: 1 / 0)(pushed)
    arrivals.announcing(lambda request: SimpleNamespace(objects_to_push=[]))(pushed)  # another way to refuse
    assert arrivals.look(NODE) and waits(arrivals, NODE) == [False]


def test_a_node_is_not_answered_while_a_part_of_its_message_is_on_its_way(arrivals, monkeypatch):
    pairs = (message("a", 7), tree("a", "part", "known")), (message("b", 8), tree("b"))
    announced(arrivals, *pairs, known={"known"})
    came(arrivals, "a")  # objects come in any order
    assert not arrivals.look(NODE) and waits(arrivals, NODE) == [False]
    came(arrivals, "part")
    assert waits(arrivals, NODE, seconds=600.0) == [True] and arrivals.look(NODE)
    assert not arrivals.look((8, 0))
    monkeypatch.setattr(superlink, "PARTS_SECONDS", 0.0)  # its sender has gone
    assert waits(arrivals, (8, 0), seconds=600.0) == [True] and arrivals.look((8, 0))


def test_a_part_of_two_messages_comes_once(arrivals):
    announced(arrivals, *((message(id, to), tree(id, "part")) for id, to in (("a", 7), ("b", 8))))
    for id in ("a", "b", "part"):
        came(arrivals, id)
    assert waits(arrivals, NODE, (8, 0), seconds=600.0) == [True, True]


def test_a_part_that_comes_while_a_message_is_announced_has_come(arrivals):
    came(arrivals, "old")  # and is to be pushed again

    def push(request):
        came(arrivals, "part")
        return SimpleNamespace(objects_to_push=["a", "part", "old"])

    pairs = message("a", 7), tree("a", "part", "old")
    arrivals.announcing(push)(SimpleNamespace(messages_list=pairs[:1], message_object_trees=pairs[1:]))
    came(arrivals, "a")
    assert not arrivals.look(NODE)
    came(arrivals, "old")
    assert arrivals.look(NODE)


def test_what_comes_ends_the_waiting(arrivals):
    assert waits(arrivals, NODE, SERVER, seconds=600.0) == [True, True], (
        "it may have come before this process"
    )
    assert arrivals.look(NODE) and arrivals.look(SERVER)
    announced(arrivals, (message("a", 7), tree("a")), (message("b", 1), tree("b")))
    for who, id in ((NODE, "a"), (SERVER, "b")):
        assert waits(arrivals, who, seconds=600.0, meanwhile=lambda id=id: came(arrivals, id)) == [True]
        assert arrivals.look(who)
    came(arrivals, "a")  # it has been handed out: nothing new
    assert waits(arrivals, NODE, SERVER) == [False, False]
    arrivals.more(SERVER)
    assert waits(arrivals, NODE, SERVER) == [False, True]


@pytest.mark.slow
def test_however_many_wait_all_are_told_and_a_node_waits_once(arrivals):
    nodes = [(id, 0) for id in range(2, 1002)]
    for who in nodes:
        arrivals.look(who)
    announced(arrivals, *((message(str(who), who[0]), tree(str(who), "shared")) for who in nodes))
    for who in nodes:
        came(arrivals, str(who))
    assert all(waits(arrivals, *nodes, seconds=600.0, meanwhile=lambda: came(arrivals, "shared")))
    arrivals.look(NODE)
    announced(arrivals, (message("a", 7), tree("a")))
    assert waits(arrivals, NODE, NODE, seconds=2.0, meanwhile=lambda: came(arrivals, "a")) == [False, True]


def test_who_waits_does_not_hold_up_the_end(arrivals):
    arrivals.look(NODE)
    assert waits(arrivals, NODE, seconds=600.0, meanwhile=arrivals.end) == [True]
    arrivals.look(NODE)
    assert waits(arrivals, NODE, seconds=600.0) == [True], "nor does who asks again"


def test_who_waits_is_told_when_a_part_is_too_late(arrivals, monkeypatch):
    arrivals.look(NODE)
    announced(arrivals, (message("a", 7), tree("a")))
    monkeypatch.setattr(superlink, "PARTS_SECONDS", 0.0)
    later = lambda: announced(arrivals, (message("b", 8), tree("b")))  # noqa: E731
    assert waits(arrivals, NODE, seconds=600.0, meanwhile=later) == [True]


def test_after_a_while_nobody_is_sure_that_there_is_nothing(arrivals, monkeypatch):
    sure = lambda: LOOP.run(arrivals.wait(NODE, 0.01))  # noqa: E731
    assert not sure(), "nobody has looked"
    arrivals.look(NODE)
    assert sure()
    announced(arrivals, (message("a", 7), tree("a", "part")))
    assert sure(), "a part is on its way"
    monkeypatch.setattr(superlink, "SURE_SECONDS", 0.0)
    assert not sure(), "a word may have got lost"


def test_what_is_sent_again_is_told_to_all(arrivals):
    for who in (NODE, SERVER):
        arrivals.look(who)
    assert waits(arrivals, NODE, SERVER) == [False, False]
    assert waits(arrivals, NODE, seconds=600.0, meanwhile=arrivals.more) == [True]
    assert waits(arrivals, SERVER, seconds=600.0) == [True], "who did not ask just then"
