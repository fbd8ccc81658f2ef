"""A round's messages as the server sees them: instructions out, replies in, whatever order they come in."""

import re
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING, getLogger
from typing import Any, TypeVar, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict

from fedpart.federated import wire
from fedpart.federated.protocol import Protocol
from fedpart.flower.workarounds.objects import UNREADABLE, message_bytes
from fedpart.partition.partition import Partition
from fedpart.task.held_out import HeldOutScore
from fedpart.updates.client_state import ClientState
from fedpart.updates.errors import ClientError, Refusal, brief
from fedpart.updates.update import LARGEST, Round, Update

Found = TypeVar("Found")
Reader = Callable[[Protocol, int, int, Message], Found]
NAMES = {  # codes of Flower's errors that come without a client's exception
    1: "its ClientApp cannot be loaded",
    3: "the message got lost",
    4: "its reply got lost",
    5: "its node is gone",
    8: "its process died",
}

GRACE = 60.0  # seconds beyond a round's timeout for which its messages are kept: clocks differ


def state_record(values: Round, protocol: Protocol, partition: Partition) -> ArrayRecord:
    """w, as far as a network needs it, and psi; one record for all who start from them with that network."""
    variates = () if values.variates is None else (values.variates,)
    state = wire.encode_state(values.w, values.psi, protocol, partition, *variates)
    return ArrayRecord({name: Array(array) for name, array in state.items()})


def instruction(
    protocol: Protocol, round: int, client: int, node: int, state: ArrayRecord,
    residuals: ClientState | None = None, kind: str = MessageType.TRAIN,
    rates: Mapping[str, Any] | None = None,
) -> Message:  # fmt: skip
    """What ``client``, reached at ``node``, is asked to do in ``round``; no node begins with it later.

    With ``MessageType.EVALUATE`` it is asked what it makes of the network that came out of the round.
    ``rates``: ``local_rate`` and ``trial`` of :class:`.Round`, where they are tried."""
    config: dict[str, Any] = wire.Header.of(protocol, round, client).scalars()
    if kind == MessageType.TRAIN:
        config = {"jobs": wire.encode_jobs(protocol.plan(client, round)), **config}
    if residuals is not None:
        config["residuals"] = list(residuals.of([client]).versions[client])
    config |= rates or {}
    content = RecordDict({"arrays": state, "config": ConfigRecord(config)})
    ttl = protocol.settings.round_timeout + GRACE
    return Message(content, node, kind, ttl=ttl, group_id=str(round))


def read_score(protocol: Protocol, round: int, client: int, reply: Message) -> HeldOutScore:
    """The score in the reply to an :func:`instruction` to evaluate, checked."""
    return wire.decode_score(_metrics(protocol, round, client, reply), protocol)


def _metrics(protocol: Protocol, round: int, client: int, reply: Message) -> MetricRecord:
    """The scalars of a reply whose header is that of the message, or a Refusal."""
    content = reply.content
    for name, kind in (("config", ConfigRecord), ("metrics", MetricRecord)):
        if not isinstance(content.get(name), kind):
            raise Refusal("malformed", f"it has no {kind.__name__} {name!r}")
    wire.Header.of(protocol, round, client).check(wire.Header.read(cast(ConfigRecord, content["config"])))
    return cast(MetricRecord, content["metrics"])


def read_reply(protocol: Protocol, round: int, client: int, reply: Message, limit: float = LARGEST) -> Update:
    """The update in the reply to :func:`instruction`, checked; the message stays as it is."""
    metrics, received = _metrics(protocol, round, client, reply), reply.content.get("arrays")
    if not isinstance(received, ArrayRecord):
        raise Refusal("malformed", "it has no ArrayRecord 'arrays'")
    jobs = protocol.plan(client, round)
    forms = wire.upload_forms(protocol, client, jobs)
    wire.check_names(received, forms)
    for name, array in received.items():
        if array.stype != "numpy.ndarray":  # the only form that is read
            raise Refusal("malformed", f"its array {name} cannot be read (its form is {array.stype[:40]!r})")
    arrays = {name: wire.read_npy(name, array.data, forms[name]) for name, array in received.items()}
    return wire.decode_update(arrays, metrics, protocol, client, jobs, limit)


def cause(error: Error) -> str:
    """What went wrong at a client, in one line: the last meaningful one of a traceback, without colours."""
    text = re.sub(r"(\x1b|\\x1b)\[[0-9;]*m", "", error.reason or "").replace("\\n", "\n")
    lines = [line.strip() for line in text.splitlines() if line.strip(" >'\"")]
    if not lines:
        return NAMES.get(error.code, f"Flower's error code {error.code}")
    last = re.sub(r"^<class '(?:\w+\.)*(\w+)'>:<['\"](.*)['\"]>$", r"\1: \2", lines[-1])
    wrappers = r"^(?:Exception \w+ occurred\. Message: |(?:\w+\.)*(?:ClientAppException|ClientError): )"
    return brief(re.sub(wrappers, "", last).removesuffix("'>"))


def blaming(
    read: Reader[Found], protocol: Protocol, round: int, client: int, answer: Message | None
) -> Found:
    """What ``read`` makes of the answer, or a ClientError that names the client and the cause."""
    if answer is None:
        raise ClientError.silent(client, round)
    if answer.has_error():
        why = cause(answer.error)
        if answer.error.code == UNREADABLE:
            raise ClientError.refused(client, round, Refusal("malformed", why))
        named = f"client {client} " in why or f"Client {client} " in why  # the exception says so itself
        raise ClientError(why if named else f"Client {client} failed in round {round}: {why}")
    try:
        return read(protocol, round, client, answer)
    except Refusal as error:
        raise ClientError.refused(client, round, error) from error


log = getLogger("flwr").log


class Incoming:
    """Replies to ``sent`` messages, by client, in any order; read no further than it must be.

    Of those that come in order none is kept."""

    def __init__(self, replies: Iterable[Message], sent: Mapping[int, Message]) -> None:
        self._replies, self._sent = iter(replies), sent
        self.bytes = 0  # of the replies read so far, serialised
        self.late = 0  # how many of them answer something else, an earlier round for instance
        self._client_of: dict[str, int] = {}  # by the message's id
        self._early: dict[int, Message] = {}
        self._seen: set[int] = set()
        self._repeated: list[int] = []

    def take(self, client: int) -> Message | None:
        """The first reply of ``client``; None: there is none."""
        while client not in self._early:
            if (reply := next(self._replies, None)) is None:
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
        if (client := self._client_of.get(answers)) is None:
            self.late += 1
            log(WARNING, "Node %s answers no message of this round", reply.metadata.src_node_id)
            return
        self.bytes += message_bytes(reply)
        if client in self._seen:
            self._repeated.append(client)
        else:
            self._seen.add(client)
            self._early[client] = reply
