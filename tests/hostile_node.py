"""A registered SuperNode that abuses its SuperLink in a loop."""

import itertools
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from superlink_state import broad, deep

from simulations.deployment.keys import NODE_KEY


class Hostile(threading.Thread):
    """Abuses a SuperLink until it is told to stop.

    Args:
        address: of the SuperLink.
        authority: certificate of its authority.
        keys: folder of the node's.

    Attributes:
        answers: how often a status came, by the kind of abuse.
    """

    def __init__(self, address: str, authority: Path, keys: Path) -> None:
        super().__init__(daemon=True)
        self.answers: Counter[tuple[str, int]] = Counter()
        self.over, self._run, self._asked = threading.Event(), 0, Metadata()
        private = load_ssh_private_key((keys / NODE_KEY).read_bytes(), None)
        self._public = public_key_to_bytes(private.public_key())
        signs = NodeAuthHttpInterceptor(private, private.public_key())
        checks = [RuntimeVersionHttpInterceptor("SuperNode"), signs]
        self._client = FleetHttpClient.from_server_address(address, False, authority.read_bytes(), checks)
        self._anyone = httpx.Client(base_url=f"https://{address}", verify=str(authority), timeout=60)

    def run(self) -> None:
        kinds = [getattr(self, name) for name in dir(type(self)) if name.startswith("abuse_")]
        node = self._client.ActivateNode(
            ActivateNodeRequest(public_key=self._public, heartbeat_interval=1800)
        )
        self.node = Node(node_id=node.node_id)
        for number, abuse in enumerate(itertools.cycle(kinds)):
            if self.over.is_set():
                break
            with suppress(httpx.TransportError):  # it has been cut off, or the SuperLink is away
                if number % 5 == 0:
                    self._ask()  # which takes some seconds, if there is no message
                self._note(abuse)
        self._client.close()

    def _ask(self) -> None:
        """Look for a message to answer."""
        with suppress(httpx.HTTPStatusError):
            found = self._client.PullMessages(PullMessagesRequest(node=self.node))
            for message in found.messages_list:
                self._asked = message.metadata
                self._run = self._asked.run_id

    def _note(self, abuse) -> None:
        name = abuse.__name__.removeprefix("abuse_")
        try:
            abuse()
            self.answers[name, 200] += 1
        except httpx.HTTPStatusError as error:
            self.answers[name, error.response.status_code] += 1

    def _push(self, tree=None, content=None, **changes) -> None:
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
        message = Message(metadata=Metadata(**about), content=content or RecordDict())
        request = PushMessagesRequest(
            node=self.node, messages_list=[message], message_object_trees=[tree], clientapp_runtime_list=[1.0]
        )
        self._client.PushMessages(request)

    def _push_object(self, content: bytes, **changes) -> None:
        about = {"run_id": self._run, "object_id": get_object_id(content), **changes}
        self._client.PushObject(PushObjectRequest(node=self.node, object_content=content, **about))

    def abuse_children(self) -> None:
        self._push(broad(10_000))

    def abuse_depth(self) -> None:
        self._push(deep(90))

    def abuse_no_type(self) -> None:
        self._push(message_type="")

    def abuse_unknown_type(self) -> None:
        self._push(message_type="unknown")

    def abuse_another_run(self) -> None:
        self._push(run_id=self._run + 1)

    def abuse_another_node(self) -> None:
        self._push(src_node_id=self.node.node_id + 1)

    def abuse_not_a_number(self) -> None:
        self._push(created_at=float("nan"))

    def abuse_no_answer(self) -> None:
        self._push(reply_to_message_id="")

    def abuse_answers_to_nothing(self) -> None:
        for number in range(50):
            self._push(reply_to_message_id=f"{number:064x}")

    def abuse_names(self) -> None:
        self._push(ObjectTree(object_id="no hash"))

    def abuse_content(self) -> None:
        self._push(content=RecordDict(items=[RecordDict.Item(key=str(number)) for number in range(9000)]))

    def abuse_large_object(self) -> None:
        self._push_object(bytes(2**24))

    def abuse_false_name(self) -> None:
        self._push_object(ConfigRecord({"a": 1}).deflate(), object_id="a" * 64)

    def abuse_many_names(self) -> None:
        self._push_object(ConfigRecord({str(number): 1 for number in range(10_000)}).deflate())

    def abuse_unknown_run(self) -> None:
        id = "a" * 64
        self._client.PullObject(PullObjectRequest(node=self.node, run_id=5, object_id=id))

    def abuse_confirming(self) -> None:
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=5, message_object_id="a" * 64)
        self._client.ConfirmMessageReceived(request)

    def abuse_asking(self) -> None:
        for _ in range(300):
            self._client.GetRun(GetRunRequest(node=self.node, run_id=self._run))

    def abuse_being_refused(self) -> None:
        for _ in range(60):
            try:
                self.abuse_unknown_run()
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 400:
                    raise

    def abuse_as_a_stranger(self) -> None:
        heads = {"Content-Type": "application/protobuf"}
        answer = self._anyone.post("/v1/fleet/push-object", content=bytes(2**24), headers=heads)
        answer.raise_for_status()
