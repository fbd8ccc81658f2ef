"""A Grid that calls the ClientApp in this process, through the form in which every message travels."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.common.serde_utils import metadata_from_proto, metadata_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import validate_object_content

from fedpart.flower.workarounds.objects import RUN_ID, ErrorCode, Run, claim_identity, identify, read_objects

LIMIT = 2**23  # bytes of a reply
Tamper = Callable[[Message], Message | None]


def travelled(reply: Message) -> tuple[Metadata, dict[str, bytes]]:
    """A reply as it comes out of a SuperLink: its metadata, and the contents of its objects."""
    with no_object_id_recompute():
        contents = {id: part.deflate() for id, part in get_all_nested_objects(reply).items()}
    for content in contents.values():
        validate_object_content(content)
    metadata = metadata_from_proto(metadata_to_proto(reply.metadata))
    metadata.__dict__["_message_id"] = list(contents)[-1]
    return metadata, contents


class InProcessGrid(Grid):
    """Node ids are random, replies come in random order, and everything is counted.

    ``tamper`` changes a reply on its way to the server, or drops it: None.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        run_config: Mapping[str, Any] | None = None,
        *,
        tamper: Tamper | None = None,
        seed: int = 0,
    ) -> None:
        claim_identity()
        self.app, self.tamper, self.run_config = app, tamper, dict(run_config or {})
        self.random = random.Random(seed)
        self.nodes: dict[int, dict[str, Any]] = {}
        self.sent: list[Message] = []
        self.bytes_up = self.bytes_down = 0
        self._replies: dict[str, Message] = {}
        for client in range(clients):
            self.join({"partition-id": client, "num-partitions": clients})

    def join(self, node_config: dict[str, Any]) -> int:
        node = self.random.getrandbits(63)
        self.nodes[node] = node_config
        return node

    def leave(self, client: int) -> int:
        node = next(node for node, config in self.nodes.items() if config["partition-id"] == client)
        del self.nodes[node]
        return node

    def set_run(self, run: Run) -> None:
        raise AssertionError("not used")

    @property
    def run(self) -> Run:
        return Run.create_empty(RUN_ID)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated")

    def get_node_ids(self) -> Iterable[int]:
        return set(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        assert isinstance(messages, list), "a deployment iterates twice"
        ids = []
        for message in messages:
            identify(message, uid := str(uuid4()))
            self.sent.append(message)
            ids.append(uid)
            data = message_to_proto(message).SerializeToString()
            reply = self._answer(message_from_proto(ProtoMessage.FromString(data)))
            identify(reply, str(uuid4()))
            if message.metadata.message_type == "train":
                self.bytes_down += len(data)
            if message.metadata.message_type != "query":
                tampered = self.tamper(reply) if self.tamper else reply
                if tampered is None:
                    continue
                reply = tampered
            if message.metadata.message_type == "train":
                self.bytes_up += len(message_to_proto(reply).SerializeToString())
            received = read_objects(*travelled(reply), LIMIT)
            identify(received, reply.metadata.message_id)
            self._replies[uid] = received
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = [self._replies.pop(i) for i in message_ids if i in self._replies]
        self.random.shuffle(replies)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node not in self.nodes:
            return Message(Error(code=ErrorCode.NODE_UNAVAILABLE), reply_to=message)
        context = Context(
            run_id=RUN_ID,
            node_id=node,
            node_config=self.nodes[node],
            state=RecordDict(),
            run_config=self.run_config,
        )
        try:
            return self.app(message, context)
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)
