"""What is put right in the SuperLink's database: parts of objects, messages that got lost, tokens."""

import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import sql_corestate
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.state.schema.linkstate_models import LinkStateBase
from flwr.supercore.state.schema.objectstore_models import ObjectStoreBase
from sqlalchemy import create_engine
from superlink_state import SuperLink, opened

from fedpart.flower.workarounds.database import (
    check_children,
    correct,
    hide_from_database,
    redeliver,
    take_turns,
)
from fedpart.flower.workarounds.objects import claim_identity

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_what_was_on_its_way_is_sent_again(tmp_path):
    """Unconfirmed and delivered before the start; not what is answered, confirmed, waiting or newer."""
    engine = create_engine(f"sqlite:///{tmp_path / 'state.db'}")
    for base in (LinkStateBase, ObjectStoreBase):
        base.metadata.create_all(engine)
    early, late = ((START + timedelta(seconds=s)).isoformat() for s in (-1, 1))
    messages = {"lost": early, "answered": early, "confirmed": early, "waiting": "", "new": late}
    replies = {"to lost reply": early, "to answered": "", "to confirmed": early}
    tables = {**LinkStateBase.metadata.tables, **ObjectStoreBase.metadata.tables}
    with engine.begin() as connection:
        for name, times in (("message_ins", messages), ("message_res", replies)):
            for id, delivered in times.items():
                answered = id.partition(" ")[2]
                row = {"message_id": id, "delivered_at": delivered, "reply_to_message_id": answered}
                connection.execute(sqlalchemy.insert(tables[name]).values(row))
        for id in ("lost", "answered", "waiting", "new", "to lost reply", "to answered"):
            connection.execute(sqlalchemy.insert(tables["objects"]).values(object_id=id))
    assert redeliver(tmp_path / "state.db", START) == 2
    with closing(engine.connect()) as connection:
        for name, times in (("message_ins", messages), ("message_res", replies)):
            wanted = sqlalchemy.select(tables[name].c.message_id, tables[name].c.delivered_at)
            found = dict(connection.execute(wanted).all())
            assert found == {**times, **{id: "" for id in times if id in ("lost", "to lost reply")}}
    assert redeliver(tmp_path / "state.db", START) == 0


@pytest.fixture
def store(tmp_path):
    return opened(SqlObjectStore(str(tmp_path / "objects.db")))[0]


def foreseen_by_a_node(store, part):
    """A node announces an object with other parts than it has."""
    children = [ObjectTree(object_id=part, children=[ObjectTree(object_id="cd" * 32)])]
    store.preregister(1, false := ObjectTree(object_id="ef" * 32, children=children))
    return false


@pytest.mark.parametrize("pushed_before", [False, True])
def test_the_server_is_believed_about_objects_that_a_node_has_announced(store, pushed_before):
    part = Array(np.arange(3.0))
    record, message = ArrayRecord({"w": part}), "ab" * 32
    theirs, foreseen, absent = get_object_tree(record), record.object_id, "cd" * 32
    foreseen_by_a_node(store, foreseen)
    if pushed_before:
        store.put(foreseen, record.deflate())
    tree = ObjectTree(object_id=message, children=[theirs])
    with pytest.raises(ValueError, match="different children"):
        store.preregister(1, tree)
    correct(store, tree)
    correct(store, tree)
    wanted = {node.object_id for node in iterate_object_tree(tree)}
    assert set(store.preregister(1, tree)) == wanted - ({foreseen} if pushed_before else set())
    assert store.get_object_tree(message) == tree
    store.delete("ef" * 32)  # what the node has announced
    assert store.get_object_tree(message) == tree, "the message still has all of its parts"
    store.delete(message)
    store.delete(absent)
    assert len(store) == 0


def announced(store, tree):
    """As a node announces it."""
    correct(store, tree, believed=False)
    return store.preregister(1, tree)


def pushed(store, thing, most=10):
    content = thing.deflate()
    check_children(PushObjectRequest(object_id=thing.object_id, object_content=content), store, most)
    store.put(thing.object_id, content)


@pytest.mark.quick(1)
@pytest.mark.parametrize("again", [False, True])
def test_a_node_that_foresees_another_nodes_answer_keeps_nobody_from_giving_it(store, again):
    config = ConfigRecord({"round": 7, "client": 3})
    content = RecordDict({"config": config})
    honest = get_object_tree(content)
    false = foreseen_by_a_node(store, config.object_id)
    assert config.object_id in announced(store, honest)
    if again:
        announced(store, false)
    pushed(store, config)
    pushed(store, content)
    assert store.get_object_tree(content.object_id) == honest
    with pytest.raises(ValueError, match="different children"):
        announced(store, false)
    assert store.get_object_tree(content.object_id) == honest


def test_an_object_whose_head_nobody_believes_is_refused(store):
    record = RecordDict({"config": ConfigRecord({"round": 7})})
    announced(store, get_object_tree(record))
    with pytest.raises(ValueError, match="more than 0 parts"):
        pushed(store, record, most=0)
    other = RecordDict({"other": ConfigRecord({"round": 8})}).deflate()
    with pytest.raises(ValueError, match="not the one of that name"):
        check_children(PushObjectRequest(object_id=record.object_id, object_content=other), store, 10)
    assert store.get_object_tree(record.object_id) == get_object_tree(record)


def test_a_database_has_digests_of_tokens(tmp_path, monkeypatch):
    state = sql_corestate.SqlCoreState
    for name in ("claim_task", "get_task_by_token"):
        monkeypatch.setattr(state, name, getattr(state, name))
    monkeypatch.setattr(sql_corestate, "secrets", sql_corestate.secrets)
    hide_from_database()
    link = SuperLink(tmp_path)
    claim_identity()
    task = link.state.create_task(TaskType.CLIENT_APP, link.run, "hash")
    token = link.state.claim_task(task)
    assert token and link.state.claim_task(task) is None
    assert link.state.get_task_by_token(token).task_id == task
    assert link.state.get_task_by_token("another") is None
    files = list(tmp_path.glob("state.db*"))
    assert files and not any(token.encode() in file.read_bytes() for file in files)


def count_up_twice(tmp_path):
    """Two states of one database each read a number and then write the next; the first waits in between."""
    first, second = opened(*(SqlObjectStore(str(tmp_path / "state.db")) for _ in range(2)))
    first.query("CREATE TABLE rounds (number INTEGER)")
    first.query("INSERT INTO rounds VALUES (0)")
    has_read, has_written = threading.Event(), threading.Event()

    def count(state):
        with state.session():
            number = state.query("SELECT number FROM rounds")[0]["number"]
            if state is first:
                has_read.set()
                has_written.wait(0.5)
            state.query("UPDATE rounds SET number = :number", {"number": number + 1})

    def count_as_well():
        has_read.wait()
        count(second)
        has_written.set()

    other = threading.Thread(target=count_as_well)
    other.start()
    try:
        count(first)
    finally:
        has_written.set()
        other.join()
    return first.query("SELECT number FROM rounds")[0]["number"]


def test_flowers_own_transactions_count_one_of_two(tmp_path):
    assert count_up_twice(tmp_path) == 1


def test_transactions_take_turns(tmp_path, monkeypatch):
    mixin = sql_corestate.SqlMixin
    monkeypatch.setattr(mixin, "session", mixin.session)
    take_turns()
    assert count_up_twice(tmp_path) == 2
