"""Which node is which client: node ids are Flower's and change, client numbers are ours and stay."""

import re
import time
from collections.abc import Iterable
from logging import INFO, WARNING, getLogger
from typing import NamedTuple, cast

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpart.checks import require
from fedpart.federated.wire import VERSION
from fedpart.flower.messages import GRACE, cause
from fedpart.updates.errors import brief

log = getLogger("flwr").log
FIRST_POLL_SECONDS, POLL_SECONDS, PROGRESS_SECONDS = 0.02, 0.5, 10.0
TOGETHER, PATIENCE = 32, 5.0  # new nodes that are asked at a time; seconds until others are, too
MOST_LATE = 10_000  # numbers of clients that join late; a byte each
LOST = (3, 4, 5, 8)  # Flower's codes of answers that a node cannot be blamed for, see NAMES


class NodesError(RuntimeError):
    """The connected nodes are not the clients of the configuration; the message says what to change."""


class RegistrationError(NodesError):
    """A node says that it is another client than its key is registered for."""


def node_name(client: int) -> str:
    """The name under which the key of a client's SuperNode is registered."""
    return f"client-{client}"


class _Question(NamedTuple):
    """To whom it went; the name its key is registered under; since when it is there."""

    node: int
    name: str
    since: float


class Nodes:
    """Asks every new node once which client it is, and remembers the answer.

    Where SuperNodes have registered keys, a key registered under :func:`node_name` is that client's and no
    other's: from the first such name on, a node that says otherwise is refused, and so is one without such a
    name; the run goes on. If ``lenient`` it goes on also without clients that are missing after ``wait``
    seconds, and without nodes that do not belong to it. Clients that join ``late``, with numbers of N or
    more, are taken in once one of the N is there: without any, the nodes are those of another federation.
    """

    def __init__(self, clients: int, wait: float, lenient: bool, late: bool = False) -> None:
        self.clients, self.wait, self.lenient, self.late = clients, wait, lenient, late
        self._heard: set[int] = set()  # nodes that have answered
        self._latest: dict[int, _Question] = {}  # by client number: what its latest node has answered
        self._open: dict[str, _Question] = {}  # by the message's id
        self._seen, self._asked = dict[int, float](), 0.0  # since when each node is there; the last question
        self._bound = False  # whether names bind
        self._refusal = ""  # the last one

    def present(self, grid: Grid) -> dict[int, int]:
        """Node ids by client number, of the clients that are connected and have said who they are.

        New nodes are asked, and not waited for: they are there once they have answered."""
        names = {node.node_id: node.name for node in grid.get_nodes()}
        online = names.keys()
        if not self._bound and any(re.fullmatch(r"client-\d+", name) for name in names.values()):
            self._bound = True
            self._heard.clear()  # those that have been taken in have no such name
            self._latest.clear()
        asked, now = {question.node for question in self._open.values()}, time.monotonic()
        self._seen = {node: self._seen.get(node, now) for node in online}
        room = TOGETHER - len(asked) if now - self._asked < PATIENCE else TOGETHER
        if unknown := sorted(online - self._heard - asked)[: max(room, 0)]:
            content, ttl = RecordDict({"config": ConfigRecord({"version": VERSION})}), self.wait + GRACE
            questions = [Message(content, node, MessageType.QUERY, ttl=ttl) for node in unknown]
            self._asked = now
            for id, node in zip(grid.push_messages(questions), unknown, strict=False):
                self._open[id] = _Question(node, names[node], self._seen[node])
        self._listen(grid)
        if self._latest.keys().isdisjoint(range(self.clients)):
            return {}
        return {client: last.node for client, last in sorted(self._latest.items()) if last.node in online}

    def wait_for(self, grid: Grid, wanted: Iterable[int] | None = None) -> dict[int, int]:
        """As :meth:`present`, once all ``wanted`` clients (None: any) are there; lenient: in ``wait`` s."""
        clients, start = set(range(self.clients) if wanted is None else wanted), time.monotonic()
        shown, pause = start, FIRST_POLL_SECONDS
        while True:
            nodes = self.present(grid)
            if clients <= nodes.keys() or (wanted is None and nodes):
                return nodes
            now = time.monotonic()
            if now - start >= self.wait:
                if self.lenient and nodes:
                    log(WARNING, "Going on with %s of %s clients", len(nodes), self.clients)
                    return nodes
                missing = sorted(clients - nodes.keys())
                names = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
                raise NodesError(
                    f"After {self.wait:g} seconds (node_timeout) {len(nodes)} of the {self.clients} "
                    f"configured clients are connected (missing: {names}). {self._refusal}{self._switch()}"
                )
            if now - shown >= PROGRESS_SECONDS:
                online, refused = f"{len(nodes)} of {self.clients} are there", self._refusal.strip()
                log(INFO, "Waiting for clients: %s%s", online, f". {refused}" if refused else "")
                shown = now
            time.sleep(pause)
            pause = min(1.5 * pause, POLL_SECONDS)

    def _switch(self) -> str:
        return (
            f"Start as many nodes as the configuration has clients: flwr run . --federation-config "
            f"'num-supernodes={self.clients}', or SuperNodes with --node-config 'partition-id=0 "
            f"num-partitions={self.clients}' and so on; or set clients to the number of nodes."
        )

    def _listen(self, grid: Grid) -> None:
        """Take in the answers that have come."""
        if not self._open:
            return
        answers = [one for one in grid.pull_messages(list(self._open)) if _question(one) in self._open]
        for answer in sorted(answers, key=lambda answer: self._open[_question(answer)].node):
            node, name, since = question = self._open.pop(_question(answer))
            if answer.has_error() and answer.error.code in LOST:
                log(WARNING, "Node %s has not answered: %s; it is asked again", node, cause(answer.error))
                continue
            try:
                client = self._read(answer)
                way_out = f"its key is registered as {name!r}: start it with the partition-id of its key."
                named = not self._bound or name == node_name(client)
                require(named, f"It says that it is client {client}, but {way_out}", RegistrationError)
                other = self._latest.get(client)
                if other is not None and other.since == since:  # they were there at the same time
                    both = f"Nodes {other.node} and {node} both say that they are client {client}"
                    raise NodesError(f"{both}; give every node a partition-id of its own.")
            except NodesError as error:
                if not self.lenient and not isinstance(error, RegistrationError):
                    raise
                self._refusal = f"Refused: {str(error).removesuffix(self._switch()).strip()} "
                log(WARNING, "Node %s is refused: %s", node, error)
            else:
                if other is not None:
                    log(WARNING, "Client %s is now node %s, it was %s", client, node, other.node)
                self._latest[client] = question
            self._heard.add(node)

    def _read(self, answer: Message) -> int:
        """The client number in the answer of a node."""
        if answer.has_error():
            raise NodesError(f"A node cannot say which client it is: {cause(answer.error)}")
        config = cast(ConfigRecord, answer.content.get("config", ConfigRecord()))
        version, client, clients = (config.get(key) for key in ("version", "client", "clients"))
        same = "install the same version of fedpart on both."
        speaks = f"A node speaks version {brief(str(version))} of the wire form, this server {VERSION}"
        require(version == VERSION, f"{speaks}; {same}", NodesError)
        if type(client) is not int or type(clients) is not int:
            raise NodesError(f"A node answers without a number; {same}")
        if self.late and self.clients <= client < min(clients, self.clients + MOST_LATE):
            return client  # it joins late, in a larger federation; the assignment keeps the chunks balanced
        others = f"A node was started for {clients} clients, the configuration has {self.clients}."
        require(clients == self.clients, f"{others} {self._switch()}", NodesError)
        numbers = f"clients are numbered 0 to {self.clients - 1}: correct its partition-id."
        claims = f"A node says that it is client {client}; {numbers}"
        require(0 <= client < self.clients, claims, NodesError)
        return client


def _question(answer: Message) -> str:
    return str(answer.metadata.reply_to_message_id)
