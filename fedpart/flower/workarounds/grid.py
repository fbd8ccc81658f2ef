"""The grid to a SuperLink as FedPart uses it: no reply, whatever it is made of, ends or holds up the run."""

import itertools
import math
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, ErrorCode
from flwr.common.serde import message_from_proto
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, pull_objects
from flwr.superlink.grid.http_grid import HttpGrid

from fedpart.flower.workarounds.objects import (
    OBJECTS,
    Unreadable,
    check_size,
    make_message,
    read_objects,
    unreadable,
)
from fedpart.flower.workarounds.protocol import SHORTEST, pause, retry_handshakes
from fedpart.flower.workarounds.protocol import message as of_protocol

PULL_SECONDS = 3.0  # from one look for replies to the next, at most
LOST = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED)


class _Unfinished(Exception):
    """A part of the reply has not arrived at the SuperLink."""


class _Calls:
    """Calls of a SuperLink's Runtime API, of which one is answered otherwise.

    Flower ends the run if the SuperLink has not stored a pushed object. It says so, too, of one that it had
    stored before it was killed: at the second attempt nobody waits for the object. If it is missing
    indeed, Flower gives its message up after three minutes, and it is sent once more."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PushObject(self, request: Any) -> Any:
        self._client.PushObject(request)
        return of_protocol("PushObjectResponse")(stored=True)


class GuardedGrid(HttpGrid):
    """Flower's grid to a SuperLink, with another way of pulling messages.

    Flower's own waits for the objects that a reply announces, whatever the timeout, raises whatever their
    reading raises, which ends the run, and believes a reply about what it answers. Here a reply whose objects
    have not all come is left for a later pull, one that is too large or cannot be read becomes an error of
    code ``UNREADABLE``, and what a reply answers is what the SuperLink says.

    A message that gets lost, or whose reply or ClientApp does, is sent once more, and not by Flower's own: a
    SuperNode gives a reply up when its SuperLink ends. Clients compute the same again; both expire at the
    same moment.

    It shares the connection of ``grid``; a reply may have ``limit`` bytes."""

    def __init__(self, grid: HttpGrid, limit: int) -> None:
        # Flower's grid opens its connection itself, when it is first needed, and keeps it, its run and its
        # node in private attributes; a second grid would open a second one.
        self.__dict__ = grid.__dict__
        retry_handshakes()
        self._limit = limit
        self._unfinished: list[tuple[Any, Any]] = []

    @property
    def _runtime_client(self) -> Any:
        return _Calls(super()._runtime_client)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Replies to messages, as far as they come within ``timeout`` seconds; None: all.

        What answers a message that was sent once more is the reply to the first of the two."""
        begun = time.monotonic()
        deadline = math.inf if timeout is None else begun + timeout
        waiting, replies = self._push(messages), list[Message]()
        first: dict[str, str] = {}
        while waiting and time.monotonic() < deadline:
            lost, asked = {}, time.monotonic()
            for reply in self.pull_messages(list(waiting)):
                id = reply.metadata.reply_to_message_id
                message = waiting.pop(id, None)
                if message is not None and id not in first and reply.has_error() and reply.error.code in LOST:
                    sent = message.metadata
                    left = sent.created_at + sent.ttl - time.time()  # else it is not lost, but expired
                    if left > 0 and time.monotonic() < deadline:
                        to, kind, group = sent.dst_node_id, sent.message_type, sent.group_id
                        lost[id] = Message(message.content, to, kind, ttl=left, group_id=group)
                        continue
                reply.metadata.__dict__["_reply_to_message_id"] = first.get(id, id)
                replies.append(reply)
            if lost:
                waiting |= self._push(lost.values())
                first |= {message.metadata.message_id: id for id, message in lost.items()}
            if waiting:
                passed = time.monotonic() - asked  # more than nothing where the SuperLink has waited
                time.sleep(max(SHORTEST, pause(time.monotonic() - begun, PULL_SECONDS) - passed))
        return replies

    def _push(self, messages: Iterable[Message]) -> dict[str, Message]:
        """Messages by id, without those that the SuperLink does not take."""
        sent = list(messages)
        return {id: one for id, one in zip(self.push_messages(sent), sent, strict=False) if id is not None}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that have arrived as a whole; an unfinished one that is not asked for again is given up."""
        asked = set(message_ids)
        waiting, self._unfinished = self._unfinished, []
        begun = {reply.metadata.reply_to_message_id for reply, _ in waiting}
        request = of_protocol("PullAppMessagesRequest")(message_ids=asked - begun)
        new = self._runtime_client.PullMessages(request)
        arrived = zip(new.messages_list, new.message_object_trees, strict=True)
        messages = []
        for reply, tree in itertools.chain(waiting, arrived):
            bare = of_protocol("Message")(metadata=reply.metadata, content=of_protocol("RecordDict")())
            metadata = message_from_proto(bare).metadata
            try:
                if metadata.reply_to_message_id not in asked:
                    raise Unreadable("it answers nothing that was asked")
                message = read_objects(metadata, self._pull_objects(tree), self._limit)
            except _Unfinished:
                self._unfinished.append((reply, tree))
                continue
            except Unreadable as error:
                message = unreadable(metadata, error)
            except ObjectPullError as error:
                message = make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error)))
            read = {"run_id": metadata.run_id, "message_object_id": metadata.message_id}
            confirmed = of_protocol("ConfirmMessageReceivedRequest")(node=self.node, **read)
            self._runtime_client.ConfirmMessageReceived(confirmed)  # the SuperLink may delete its objects
            messages.append(message)
        return messages

    def _pull_objects(self, tree: Any) -> dict[str, bytes]:
        """Contents by id, as far as the limit allows; the root, which is sent last, is asked for first."""
        most = OBJECTS + self._limit // FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
        ids = [node.object_id for node in itertools.islice(iterate_object_tree(tree), most + 1)]
        if len(ids) > most:
            raise Unreadable(f"it consists of more than the {most} objects that a reply of this run may have")
        asked = partial(of_protocol("PullObjectRequest"), node=self.node, run_id=self.run.run_id)
        sizes: list[int] = []

        def pull_within_limit(object_id: str) -> bytes:
            answer = self._runtime_client.PullObject(asked(object_id=object_id))
            if not answer.object_found:
                raise ObjectPullError(object_id, "the object could not be found.")
            if not answer.object_available:
                raise _Unfinished
            content: bytes = answer.object_content
            sizes.append(len(content))
            check_size(sum(sizes), self._limit)
            return content

        return pull_objects(list(dict.fromkeys(reversed(ids))), pull_within_limit)
