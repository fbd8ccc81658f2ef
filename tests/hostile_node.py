"""A registered SuperNode that speaks with its SuperLink as it likes, in a loop, and trees of any shape."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from fedpart.flower.workarounds.protocol import NODE_KEY as NODE_KEY_HEAD
from fedpart.flower.workarounds.protocol import ApiCalls, message
from simulations.deployment.keys import NODE_KEY

HEADS = {"content-type": "application/protobuf"}
TOP, ObjectTree = "a" * 64, message("ObjectTree")


def names(count: int) -> list[str]:
    return [f"{number:064x}" for number in range(1, count + 1)]


def broad(parts: int) -> Any:
    """A tree of a message's parts, so many, side by side."""
    return ObjectTree(object_id=TOP, children=[ObjectTree(object_id=name) for name in names(parts - 1)])


def deep(parts: int) -> Any:
    """A tree of so many parts, each within the other."""
    tree: list[Any] = []
    for name in [TOP, *names(parts - 1)][::-1]:
        tree = [ObjectTree(object_id=name, children=tree)]
    return tree[0]


class Hostile(threading.Thread):
    """A registered SuperNode that abuses its SuperLink until it is told to stop.

    Before the first turn of each abuse it pauses, for its requests to be taken for what they are: a node that
    has been refused a lot is refused everything for a while. ``answers`` counts statuses by kind;
    0: the connection was cut, or took too long. ``failed`` has ended it before it was told to stop.
    """

    def __init__(
        self,
        abuses: Mapping[str, Callable[[Hostile], None]],
        address: str,
        authority: Path,
        keys: Path,
        pause: float = 0.0,
    ) -> None:
        super().__init__(daemon=True)
        self.abuses = abuses
        self.failed: Exception | None = None
        self.pause = pause
        self.answers: Counter[tuple[str, int]] = Counter()
        self.over, self.number, self.asked = threading.Event(), 0, message("Metadata")()  # number of the run
        self.address, self.authority = address, authority
        self.connections: list[socket.socket] = []
        self._private: Any = load_ssh_private_key((keys / NODE_KEY).read_bytes(), None)
        form = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        self._public: bytes = self._private.public_key().public_bytes(*form)
        self.call = ApiCalls("fleet", address, authority.read_bytes(), self._signature)
        self.anyone = httpx.Client(base_url=f"https://{address}", verify=str(authority), timeout=60)

    def run(self) -> None:
        """Until ``over``: each abuse in turn, and now and then a look for a message to answer."""
        try:
            self.node = message("Node")(node_id=self.activate())
            for turn, (kind, abuse) in enumerate(itertools.cycle(self.abuses.items())):
                if self.over.wait(self.pause if turn < len(self.abuses) else 0.0):
                    break
                if turn % 5 == 0:
                    with suppress(httpx.HTTPError):  # it takes some seconds, if there is no message
                        self.ask()
                with self.noted(kind):
                    abuse(self)
        except Exception as error:
            self.failed = error
        finally:
            self.call.close()

    def activate(self) -> int:
        return int(self.call("ActivateNode", public_key=self._public, heartbeat_interval=1800).node_id)

    def _signature(self) -> dict[str, str]:
        """Heads by which the node proves who it is."""
        when = datetime.now(UTC).isoformat()
        signed: bytes = self._private.sign(when.encode(), ECDSA(SHA256()))
        proof = {NODE_KEY_HEAD: self._public, "flwr-signature": signed}
        return {"flwr-timestamp": when, **{name: b64encode(value).decode() for name, value in proof.items()}}

    def ask(self) -> None:
        for came in self.call("PullMessages", node=self.node).messages_list:
            self.asked = came.metadata
            self.number = self.asked.run_id

    @contextmanager
    def noted(self, kind: str) -> Iterator[None]:
        """Counts how what is done here is answered, and goes on."""
        status = 200
        try:
            yield
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
        except (httpx.TransportError, OSError):
            status = 0
        self.answers[kind, status] += 1

    def push(self, tree: Any = None, content: Any = None, error: Any = None, **changes: Any) -> None:
        """Answer the last message, with other content or metadata."""
        tree = tree or ObjectTree(object_id=f"{time.monotonic_ns():064x}")
        about = {
            "run_id": self.number,
            "message_id": tree.object_id,
            "src_node_id": self.node.node_id,
            "dst_node_id": 1,
            "reply_to_message_id": self.asked.message_id,
            "message_type": self.asked.message_type,
            "created_at": time.time(),
            "ttl": 30.0,
            **changes,
        }
        metadata, content = message("Metadata")(**about), content or message("RecordDict")()
        answer = message("Message")(metadata=metadata, content=content, error=error)
        more = {"messages_list": [answer], "message_object_trees": [tree], "clientapp_runtime_list": [1.0]}
        self.call("PushMessages", node=self.node, **more)

    def push_object(self, content: bytes, **changes: Any) -> None:
        about = {"run_id": self.number, "object_id": sha256(content).hexdigest(), **changes}
        self.call("PushObject", node=self.node, object_content=content, **about)

    def post(self, path: str, content: bytes | Iterator[bytes], signed: bool = True, **heads: str) -> None:
        """A request of any content, which carries the node's signature, or nobody's."""
        heads = {**HEADS, **(self._signature() if signed else {}), **heads}
        self.anyone.post(f"/v1/{path}", content=content, headers=heads).raise_for_status()
