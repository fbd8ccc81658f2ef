"""Our SuperLink: who asks for messages is answered when a whole one is there."""

import threading
from types import SimpleNamespace

import pytest
from flwr.proto.message_pb2 import ObjectTree

from fedpart.flower.workarounds import superlink
from fedpart.flower.workarounds.superlink import Arrivals, announcing, for_servers, whose

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


def test_what_a_node_announces_to_another_keeps_that_one_from_nothing(arrivals):
    assert not for_servers(message("made up", 7)) and for_servers(message("reply", 1))

    def refuses(request):
        assert arrivals.wait(NODE) and not arrivals.wait(SERVER)
        raise ValueError("No.")

    messages, trees = [message("made up", 7), message("reply", 1)], [tree("made up"), tree("reply")]
    both = SimpleNamespace(messages_list=messages, message_object_trees=trees)
    with pytest.raises(ValueError, match=r"No\."):
        announcing(refuses, arrivals, nodes=True)(both)
    assert arrivals.wait(SERVER)


def test_a_node_is_not_answered_while_a_part_of_its_message_is_on_its_way(arrivals, monkeypatch):
    arrivals.more(NODE)
    arrivals.announced([(message("a", 7), tree("a", "part", "known")), (message("b", 8), tree("b"))])
    arrivals.missing([message("a", 7)], {"a", "part"})
    arrivals.came("a")  # objects come in any order
    assert not arrivals.wait(NODE)
    arrivals.came("part")
    assert arrivals.wait(NODE)
    assert not arrivals.wait((8, 0))
    monkeypatch.setattr(superlink, "PARTS_SECONDS", 0.0)  # its sender has gone
    assert arrivals.wait((8, 0))


def test_a_part_of_two_messages_comes_once(arrivals):
    arrivals.announced([(message(id, to), tree(id, "part")) for id, to in (("a", 7), ("b", 8))])
    for id in ("a", "b", "part"):
        arrivals.came(id)
    assert arrivals.wait(NODE) and arrivals.wait((8, 0))


def test_what_comes_ends_the_waiting(arrivals, monkeypatch):
    monkeypatch.setattr(superlink, "HOLD_SECONDS", 600.0)
    found = []
    arrivals.announced([(message("a", 7), tree("a")), (message("b", 1), tree("b"))])
    for who in (NODE, SERVER):
        asks = threading.Thread(target=lambda who=who: found.append(arrivals.wait(who)), daemon=True)
        asks.start()
        arrivals.came("a" if who == NODE else "b")
        asks.join(60.0)
    assert found == [True, True]
    arrivals.came("a")  # it has been handed out: nothing new
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
