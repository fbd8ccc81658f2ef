"""The state of a SuperLink, in a folder."""

import functools
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from unittest import mock

from flwr.app import Message, Metadata, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import SqlLinkState
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.superlink.federation.noop_federation_manager import NOOP_FEDERATION_ID, NoOpFederationManager
from flwr.superlink.servicer.fleet import fleet_handlers

from fedpart.flower.workarounds.objects import claim_identity, identify, make_message

PATIENCE = 300  # seconds, for which nodes stay online


@functools.cache
def _tables():
    """A database with Flower's tables and nothing in them."""
    with tempfile.TemporaryDirectory() as folder:
        SqlObjectStore(f"{folder}/state.db").initialize()
        with closing(sqlite3.connect(f"{folder}/state.db")) as connection:
            connection.execute("VACUUM INTO ?", [f"{folder}/whole.db"])
        return Path(folder, "whole.db").read_bytes()


def tables_that_are_made():
    """Within this context new databases get a copy of those that a first one has made, in a second."""
    content = _tables()

    def copy(engine):
        file = Path(engine.url.database)
        if not file.exists():
            file.write_bytes(content)

    return mock.patch("flwr.supercore.sql_mixin.run_migrations", copy)


def opened(*states):
    """The same states of databases, initialised."""
    with tables_that_are_made():
        for state in states:
            state.initialize()
    return states


class SuperLink:
    """The state of a SuperLink, with a run and two nodes that have a message each."""

    def __init__(self, folder):
        self.database = database = str(folder / "state.db")
        store = SqlObjectStore(database)
        self.state = SqlLinkState(database, NoOpFederationManager(), store)
        opened(self.state, store)
        self.run = self.state.create_run(
            "us/app", "1", "hash", {}, NOOP_FEDERATION_ID, None, "me", TaskType.SERVER_APP
        )
        (run,) = self.state.get_run_info(run_ids=[self.run])
        assert self.state.claim_task(run.primary_task_id) and self.state.activate_task(run.primary_task_id)
        self.nodes = [self.state.create_node("me", "me", bytes([number]), 10) for number in range(2)]
        self.asked = ["0" * 64, "1" * 64]
        claim_identity(self.run)
        for node, id in zip(self.nodes, self.asked, strict=True):
            assert self.state.activate_node(node, PATIENCE)
            message = Message(RecordDict(), node, "train")
            identify(message, id)
            assert self.state.store_message_ins(message) == id

    def push(self, answered, tree=None, kind="train", node=0, **changes):
        """A node pushes a reply to one of the messages; what the handler answers."""
        tree = tree or ObjectTree(object_id="a" * 64)
        about = {"run_id": self.run, "src_node_id": self.nodes[node], "created_at": time.time(), **changes}
        metadata = Metadata(
            message_id=tree.object_id,
            dst_node_id=1,
            reply_to_message_id=answered,
            group_id="",
            ttl=60.0,
            message_type="train",
            **about,
        )
        message = message_to_proto(make_message(metadata, RecordDict()))
        message.metadata.message_type = kind
        request = PushMessagesRequest(
            node=Node(node_id=self.nodes[node]), messages_list=[message], message_object_trees=[tree]
        )
        return fleet_handlers.push_messages(request=request, state=self.state)

    def count(self, table):
        """Rows of a table of the database."""
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
