"""Replies of a round, taken in the cohort's order while they come in any order."""

from collections.abc import Iterable, Mapping
from logging import WARNING, getLogger

from flwr.app import Message

from fedpart.flower.workarounds.outside import message_bytes

log = getLogger("flwr").log


class Incoming:
    """Reads replies no further than it must: of those that come in order, none is kept.

    Args:
        replies: in any order; a reply to anything else than ``sent`` is not ours.
        sent: messages of the round, by client.

    Attributes:
        bytes: of the replies read so far, serialised.
        late: how many of them answer something else, an earlier round for instance.
    """

    def __init__(self, replies: Iterable[Message], sent: Mapping[int, Message]) -> None:
        self._replies, self._sent = iter(replies), sent
        self.bytes = self.late = 0
        self._client_of: dict[str, int] = {}  # by the message's id
        self._early: dict[int, Message] = {}
        self._seen: set[int] = set()
        self._repeated: list[int] = []

    def take(self, client: int) -> Message | None:
        """The first reply of ``client``; None: there is none."""
        while client not in self._early:
            reply = next(self._replies, None)
            if reply is None:
                return None
            self._read(reply)
        return self._early.pop(client)

    def repeated(self) -> list[int]:
        """Clients that have answered again, once all replies are read."""
        for reply in self._replies:
            self._read(reply)
        return self._repeated

    def _read(self, reply: Message) -> None:
        answers = reply.metadata.reply_to_message_id
        if answers not in self._client_of:  # a grid gives a message its id when it sends it
            self._client_of = {message.metadata.message_id: one for one, message in self._sent.items()}
        client = self._client_of.get(answers)
        if client is None:
            self.late += 1
            log(WARNING, "Node %s answers no message of this round", reply.metadata.src_node_id)
            return
        self.bytes += message_bytes(reply)
        if client in self._seen:
            self._repeated.append(client)
        else:
            self._seen.add(client)
            self._early[client] = reply
