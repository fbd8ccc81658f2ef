"""Our SuperLink: who asks for messages is answered when a whole one is there."""

import threading
from types import SimpleNamespace

import pytest

from fedpart.flower.workarounds import holding
from fedpart.flower.workarounds.holding import Arrivals, for_servers, whose

NODE, SERVER = (7, 0), (1, 99)


def message(id, to, run=99):
    return SimpleNamespace(metadata=SimpleNamespace(message_id=id, dst_node_id=to, run_id=run))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(holding, "HOLD_SECONDS", 0.01)


def test_a_message_is_for_a_node_and_a_reply_for_the_server_of_its_run():
    assert whose(message("a", 7)) == NODE
    assert whose(message("b", 1)) == SERVER


def test_what_a_node_announces_to_another_keeps_that_one_from_nothing():
    arrivals = Arrivals()
    arrivals.announced(for_servers([message("made up", 7), message("reply", 1)]))
    assert arrivals.wait(NODE)
    assert not arrivals.wait(SERVER)


def test_a_node_is_not_answered_while_its_message_is_on_its_way(monkeypatch):
    arrivals = Arrivals()
    arrivals.more(NODE)
    arrivals.announced([message("a", 7), message("b", 8)])
    arrivals.came("an object of it")
    assert not arrivals.wait(NODE)
    arrivals.came("a")
    assert arrivals.wait(NODE)
    assert not arrivals.wait((8, 0))
    monkeypatch.setattr(holding, "PARTS_SECONDS", 0.0)  # its sender has gone
    assert arrivals.wait((8, 0))


def test_what_comes_ends_the_waiting(monkeypatch):
    monkeypatch.setattr(holding, "HOLD_SECONDS", 600.0)
    arrivals, found = Arrivals(), []
    arrivals.announced([message("a", 7), message("b", 1)])
    for who in (NODE, SERVER):
        asks = threading.Thread(target=lambda who=who: found.append(arrivals.wait(who)), daemon=True)
        asks.start()
        arrivals.came("a" if who == NODE else "b")
        asks.join(60.0)
    assert found == [True, True]
    arrivals.came("a")  # it has been handed out: nothing new
    arrivals.more(SERVER)
    assert arrivals.wait(SERVER)


def test_beyond_some_questions_nobody_waits(monkeypatch):
    monkeypatch.setattr(holding, "HOLD_SECONDS", 600.0)
    monkeypatch.setattr(holding, "MOST_HELD", 0)
    assert Arrivals().wait(NODE)
