"""Our SuperLink: who asks for messages is answered when a whole one is there."""

import threading
from types import SimpleNamespace

import pytest
from flwr.proto.message_pb2 import ObjectTree

from fedpart.flower.workarounds import superlink
from fedpart.flower.workarounds.superlink import Arrivals, whose

NODE, SERVER = (7, 0), (1, 99)


def message(id, to, run=99):
    return SimpleNamespace(metadata=SimpleNamespace(message_id=id, dst_node_id=to, run_id=run))


def tree(id, *parts):
    return ObjectTree(object_id=id, children=[ObjectTree(object_id=part) for part in parts])


@pytest.fixture
def arrivals(monkeypatch):
    monkeypatch.setattr(superlink, "HOLD_SECONDS", 0.01)
    return Arrivals()


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
    assert arrivals.wait(NODE)


def test_a_node_is_not_answered_while_a_part_of_its_message_is_on_its_way(arrivals, monkeypatch):
    arrivals.more(NODE)
    pairs = (message("a", 7), tree("a", "part", "known")), (message("b", 8), tree("b"))
    announced(arrivals, *pairs, known={"known"})
    came(arrivals, "a")  # objects come in any order
    assert not arrivals.wait(NODE)
    came(arrivals, "part")
    assert arrivals.wait(NODE)
    assert not arrivals.wait((8, 0))
    monkeypatch.setattr(superlink, "PARTS_SECONDS", 0.0)  # its sender has gone
    assert arrivals.wait((8, 0))


def test_a_part_of_two_messages_comes_once(arrivals):
    announced(arrivals, *((message(id, to), tree(id, "part")) for id, to in (("a", 7), ("b", 8))))
    for id in ("a", "b", "part"):
        came(arrivals, id)
    assert arrivals.wait(NODE) and arrivals.wait((8, 0))


def test_what_comes_ends_the_waiting(arrivals, monkeypatch):
    monkeypatch.setattr(superlink, "HOLD_SECONDS", 600.0)
    found = []
    announced(arrivals, (message("a", 7), tree("a")), (message("b", 1), tree("b")))
    for who in (NODE, SERVER):
        asks = threading.Thread(target=lambda who=who: found.append(arrivals.wait(who)), daemon=True)
        asks.start()
        came(arrivals, "a" if who == NODE else "b")
        asks.join(60.0)
    assert found == [True, True]
    came(arrivals, "a")  # it has been handed out: nothing new
    arrivals.more(SERVER)
    assert arrivals.wait(SERVER)


def test_beyond_some_questions_nobody_waits_and_a_node_waits_once(arrivals, monkeypatch):
    monkeypatch.setattr(superlink, "HOLD_SECONDS", 600.0)
    monkeypatch.setattr(superlink, "MOST_HELD", 2)

    def asks(who):
        thread = threading.Thread(target=arrivals.wait, args=(who,), daemon=True)
        thread.start()
        while who not in arrivals._waiting:
            assert thread.is_alive()
        return thread

    first = asks(NODE)
    assert arrivals.wait(NODE)  # at once: it holds one place, whatever it asks
    second = asks((8, 0))
    assert arrivals.wait((9, 0))
    for thread, who in ((first, NODE), (second, (8, 0))):
        arrivals.more(who)
        thread.join(60.0)
        assert not thread.is_alive()
