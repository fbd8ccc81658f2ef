"""What a hostile SuperNode does to its SuperLink."""

from __future__ import annotations

import os
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from flwr.app import ConfigRecord

from benchmarks.checks.object_trees import broad, deep
from benchmarks.checks.unruly_node import HEADS, Unruly
from fedpart.flower.workarounds.protocol import message


class Hostile(Unruly):
    """Abuses a SuperLink until it is told to stop; see :class:`.Unruly`."""

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
        for number in range(5):
            with self._noted("answers_to_nothing"):
                self._push(reply_to_message_id=f"{number:064x}")

    def abuse_names(self) -> None:
        self._push(message("ObjectTree")(object_id="no hash"))

    def abuse_content(self) -> None:
        kind = message("RecordDict")
        self._push(content=kind(items=[kind.Item(key=str(number)) for number in range(9000)]))

    def abuse_large_object(self) -> None:
        self._push_object(bytes(2**24))

    def abuse_false_name(self) -> None:
        self._push_object(ConfigRecord({"a": 1}).deflate(), object_id="a" * 64)

    def abuse_many_names(self) -> None:
        self._push_object(ConfigRecord({str(number): 1 for number in range(10_000)}).deflate())

    def abuse_unknown_run(self) -> None:
        id = "a" * 64
        self._call("PullObject", node=self.node, run_id=5, object_id=id)

    def abuse_confirming(self) -> None:
        self._call("ConfirmMessageReceived", node=self.node, run_id=5, message_object_id="a" * 64)

    def abuse_asking(self) -> None:
        for _ in range(300):
            self._call("GetRun", node=self.node, run_id=self._run)

    def abuse_being_refused(self) -> None:
        for _ in range(60):
            try:
                self.abuse_unknown_run()
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 400:
                    raise

    def abuse_as_a_stranger(self) -> None:
        self._post("/v1/fleet/push-object", bytes(2**24), signed=False)

    def abuse_without_a_length(self) -> None:
        self._post("/v1/fleet/push-messages", (bytes(2**20) for _ in range(64)))

    def abuse_no_protobuf(self) -> None:
        self._post("/v1/fleet/push-messages", os.urandom(2**16))

    def abuse_nothing(self) -> None:
        self._post("/v1/fleet/push-messages", b"")

    def abuse_unknown_path(self) -> None:
        self._post("/v1/fleet/..%2fcontrol/start-run", b"")

    def abuse_operators_calls(self) -> None:
        self._post("/v1/control/start-run", os.urandom(2**16))

    def abuse_serverapps_calls(self) -> None:
        self._post("/v1/runtime/push-app-messages", bytes(2**24))

    def abuse_false_signature(self) -> None:
        heads = {"flwr-public-key": "AAAA", "flwr-timestamp": "never", "flwr-signature": "x" * 4000}
        answer = self._anyone.post("/v1/fleet/pull-messages", content=b"", headers=HEADS | heads)
        answer.raise_for_status()

    def abuse_large_heads(self) -> None:
        heads = {f"x-{number}": "y" * 4000 for number in range(90)}
        self._anyone.post("/v1/fleet/pull-messages", content=b"", headers=heads).raise_for_status()

    def abuse_slowly(self) -> None:
        """Leaves eight requests half sent until its next turn."""
        for connection in self._open:
            connection.close()
        host, port = self._address.rsplit(":", 1)
        context = ssl.create_default_context(cafile=str(self._authority))
        self._open = []
        for _ in range(8):
            raw = socket.create_connection((host, int(port)), timeout=10)
            self._open.append(context.wrap_socket(raw, server_hostname=host))
            heads = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n."
            self._open[-1].sendall(heads)

    def abuse_pushing_again(self) -> None:
        tree = message("ObjectTree")(object_id=f"{time.monotonic_ns():064x}")
        for _ in range(30):
            self._push(tree)

    def abuse_from_the_future(self) -> None:
        self._push(created_at=time.time() + 1e9, ttl=1e15)

    def abuse_no_time(self) -> None:
        self._push(ttl=-1.0)

    def abuse_error_text(self) -> None:
        self._push(error=message("Error")(code=2**31 - 1, reason="x" * 900_000))

    def abuse_coming_and_going(self) -> None:
        for _ in range(20):
            self._call("DeactivateNode", node_id=self.node.node_id)
            self._activate()

    def abuse_heartbeat(self) -> None:
        for interval in (1e300, -1.0, float("nan")):
            with self._noted("heartbeat"):
                self._call("SendNodeHeartbeat", node=self.node, heartbeat_interval=interval)

    def abuse_another_nodes_heartbeat(self) -> None:
        other = message("Node")(node_id=self.node.node_id - 1)
        self._call("SendNodeHeartbeat", node=other, heartbeat_interval=1.0)

    def abuse_another_nodes_end(self) -> None:
        request = message("UnregisterNodeFleetRequest")(node_id=self.node.node_id - 1)
        self._call("UnregisterNode", request)

    def abuse_registering(self) -> None:
        request = message("RegisterNodeFleetRequest")(public_key=os.urandom(120))
        self._call("RegisterNode", request)

    def abuse_another_app(self) -> None:
        self._call("GetFab", node=self.node, run_id=self._run, hash_str="../" * 1000)

    def abuse_asking_at_once(self) -> None:
        def ask(_: int) -> None:
            with self._noted("asking_at_once"):
                self._ask()

        with ThreadPoolExecutor(40) as pool:
            list(pool.map(ask, range(40)))
