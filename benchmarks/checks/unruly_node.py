"""A registered SuperNode that speaks with its SuperLink as it likes, in a loop."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.error_pb2 import Error
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    Message,
    Metadata,
    ObjectTree,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from simulations.deployment.keys import NODE_KEY

HEADS = {"content-type": "application/protobuf"}


class Unruly(threading.Thread):
    """Abuses a SuperLink until it is told to stop.

    Args:
        address: of the SuperLink.
        authority: certificate of its authority.
        keys: folder of the node's.
        pause: seconds before the first turn of each abuse, for its requests to be taken for what they are: a
            node that has been refused a lot is refused everything for a while.

    Attributes:
        answers: how often a status came, by the kind of abuse; 0: the connection was cut, or took too long.
        failed: what has ended it before it was told to stop.
    """

    def __init__(self, address: str, authority: Path, keys: Path, pause: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.failed: Exception | None = None
        self._pause = pause
        self.answers: Counter[tuple[str, int]] = Counter()
        self.over, self._run, self._asked = threading.Event(), 0, Metadata()
        self._address, self._authority = address, authority
        self._open: list[socket.socket] = []
        private: Any = load_ssh_private_key((keys / NODE_KEY).read_bytes(), None)
        self._public = public_key_to_bytes(private.public_key())
        self._signs = NodeAuthHttpInterceptor(private, private.public_key())
        checks: list[Any] = [RuntimeVersionHttpInterceptor("SuperNode"), self._signs]
        self._client = FleetHttpClient.from_server_address(address, False, authority.read_bytes(), checks)
        self._anyone = httpx.Client(base_url=f"https://{address}", verify=str(authority), timeout=60)

    @classmethod
    def kinds(cls) -> list[str]:
        """Names of its abuses."""
        return [name.removeprefix("abuse_") for name in dir(cls) if name.startswith("abuse_")]

    def run(self) -> None:
        """Until ``over``: each abuse in turn, and now and then a look for a message to answer."""
        try:
            self.node = Node(node_id=self._activate())
            for number, name in enumerate(itertools.cycle(self.kinds())):
                if self.over.wait(self._pause if number < len(self.kinds()) else 0.0):
                    break
                if number % 5 == 0:
                    with suppress(httpx.HTTPError):  # it takes some seconds, if there is no message
                        self._ask()
                with self._noted(name):
                    getattr(self, f"abuse_{name}")()
        except Exception as error:
            self.failed = error
        finally:
            self._client.close()

    def _activate(self) -> int:
        asked = ActivateNodeRequest(public_key=self._public, heartbeat_interval=1800)
        return self._client.ActivateNode(asked).node_id

    def _ask(self) -> None:
        """Look for a message to answer."""
        found = self._client.PullMessages(PullMessagesRequest(node=self.node))
        for message in found.messages_list:
            self._asked = message.metadata
            self._run = self._asked.run_id

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        """Counts how what is done here is answered, and goes on."""
        status = 200
        try:
            yield
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
        except (httpx.TransportError, OSError):
            status = 0
        self.answers[name, status] += 1

    def _push(
        self,
        tree: ObjectTree | None = None,
        content: RecordDict | None = None,
        error: Error | None = None,
        **changes: Any,
    ) -> None:
        tree = tree or ObjectTree(object_id=f"{time.monotonic_ns():064x}")
        about = {
            "run_id": self._run,
            "message_id": tree.object_id,
            "src_node_id": self.node.node_id,
            "dst_node_id": 1,
            "reply_to_message_id": self._asked.message_id,
            "message_type": self._asked.message_type,
            "created_at": time.time(),
            "ttl": 30.0,
            **changes,
        }
        message = Message(metadata=Metadata(**about), content=content or RecordDict(), error=error)
        request = PushMessagesRequest(
            node=self.node, messages_list=[message], message_object_trees=[tree], clientapp_runtime_list=[1.0]
        )
        self._client.PushMessages(request)

    def _push_object(self, content: bytes, **changes: Any) -> None:
        about = {"run_id": self._run, "object_id": get_object_id(content), **changes}
        self._client.PushObject(PushObjectRequest(node=self.node, object_content=content, **about))

    def _post(self, path: str, content: bytes | Iterator[bytes], *, signed: bool = True) -> None:
        """A request of any content, which carries the node's signature, or nobody's."""
        request = self._anyone.build_request("POST", path, content=content, headers=HEADS)
        context: Any = SimpleNamespace(request=request)
        if signed:
            self._signs.intercept(context, lambda _: httpx.Response(200))
        self._anyone.send(request).raise_for_status()
