"""The parts of an object are those that its own head says, whoever has announced others."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from fedpart.flower.workarounds.parts import check_children, correct


@pytest.fixture
def store(tmp_path):
    made = SqlObjectStore(str(tmp_path / "objects.db"))
    made.initialize()
    return made


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
