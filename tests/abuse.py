"""What a registered node may do to a SuperLink: abuses, by name."""

import os
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
from flwr.app import ConfigRecord
from hostile_node import TOP, Hostile, ObjectTree, broad, deep

from fedpart.flower.workarounds.protocol import message


def _answers_to_nothing(node: Hostile) -> None:
    for number in range(5):
        with node.noted("answers_to_nothing"):
            node.push(reply_to_message_id=f"{number:064x}")


def _content(node: Hostile) -> None:
    kind = message("RecordDict")
    node.push(content=kind(items=[kind.Item(key=str(number)) for number in range(9000)]))


def _unknown_run(node: Hostile) -> None:
    node.call("PullObject", node=node.node, run_id=5, object_id=TOP)


def _asking(node: Hostile) -> None:
    for _ in range(300):
        node.call("GetRun", node=node.node, run_id=node.number)


def _being_refused(node: Hostile) -> None:
    for _ in range(60):
        try:
            _unknown_run(node)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 400:
                raise


def _slowly(node: Hostile) -> None:
    """Leaves eight requests half sent until its next turn."""
    for connection in node.connections:
        connection.close()
    host, port = node.address.rsplit(":", 1)
    context = ssl.create_default_context(cafile=str(node.authority))
    node.connections = []
    for _ in range(8):
        raw = socket.create_connection((host, int(port)), timeout=10)
        node.connections.append(context.wrap_socket(raw, server_hostname=host))
        heads = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n."
        node.connections[-1].sendall(heads)


def _pushing_again(node: Hostile) -> None:
    tree = ObjectTree(object_id=f"{time.monotonic_ns():064x}")
    for _ in range(30):
        node.push(tree)


def _coming_and_going(node: Hostile) -> None:
    for _ in range(20):
        node.call("DeactivateNode", node_id=node.node.node_id)
        node.activate()


def _heartbeat(node: Hostile) -> None:
    for interval in (1e300, -1.0, float("nan")):
        with node.noted("heartbeat"):
            node.call("SendNodeHeartbeat", node=node.node, heartbeat_interval=interval)


def _another_nodes_heartbeat(node: Hostile) -> None:
    other = message("Node")(node_id=node.node.node_id - 1)
    node.call("SendNodeHeartbeat", node=other, heartbeat_interval=1.0)


def _asking_at_once(node: Hostile) -> None:
    def ask(_: int) -> None:
        with node.noted("asking_at_once"):
            node.ask()

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(ask, range(40)))


FALSE = {"flwr-public-key": "AAAA", "flwr-timestamp": "never", "flwr-signature": "x" * 4000}
LARGE = {f"x-{number}": "y" * 4000 for number in range(90)}
ABUSES: dict[str, Callable[[Hostile], None]] = {
    "another_app": lambda node: node.call(
        "GetFab", node=node.node, run_id=node.number, hash_str="../" * 1000
    ),
    "another_node": lambda node: node.push(src_node_id=node.node.node_id + 1),
    "another_nodes_end": lambda node: node.call(
        "UnregisterNode", message("UnregisterNodeFleetRequest")(node_id=node.node.node_id - 1)
    ),
    "another_nodes_heartbeat": _another_nodes_heartbeat,
    "another_run": lambda node: node.push(run_id=node.number + 1),
    "answers_to_nothing": _answers_to_nothing,
    "as_a_stranger": lambda node: node.post("fleet/push-object", bytes(2**24), signed=False),
    "asking": _asking,
    "asking_at_once": _asking_at_once,
    "being_refused": _being_refused,
    "children": lambda node: node.push(broad(10_000)),
    "coming_and_going": _coming_and_going,
    "confirming": lambda node: node.call(
        "ConfirmMessageReceived", node=node.node, run_id=5, message_object_id=TOP
    ),
    "content": _content,
    "depth": lambda node: node.push(deep(90)),
    "error_text": lambda node: node.push(error=message("Error")(code=2**31 - 1, reason="x" * 900_000)),
    "false_name": lambda node: node.push_object(ConfigRecord({"a": 1}).deflate(), object_id=TOP),
    "false_signature": lambda node: node.post("fleet/pull-messages", b"", signed=False, **FALSE),
    "from_the_future": lambda node: node.push(created_at=time.time() + 1e9, ttl=1e15),
    "heartbeat": _heartbeat,
    "large_heads": lambda node: node.post("fleet/pull-messages", b"", signed=False, **LARGE),
    "large_object": lambda node: node.push_object(bytes(2**24)),
    "many_names": lambda node: node.push_object(
        ConfigRecord({str(number): 1 for number in range(10_000)}).deflate()
    ),
    "names": lambda node: node.push(ObjectTree(object_id="no hash")),
    "no_answer": lambda node: node.push(reply_to_message_id=""),
    "no_protobuf": lambda node: node.post("fleet/push-messages", os.urandom(2**16)),
    "no_time": lambda node: node.push(ttl=-1.0),
    "no_type": lambda node: node.push(message_type=""),
    "not_a_number": lambda node: node.push(created_at=float("nan")),
    "nothing": lambda node: node.post("fleet/push-messages", b""),
    "operators_calls": lambda node: node.post("control/start-run", os.urandom(2**16)),
    "pushing_again": _pushing_again,
    "registering": lambda node: node.call(
        "RegisterNode", message("RegisterNodeFleetRequest")(public_key=os.urandom(120))
    ),
    "serverapps_calls": lambda node: node.post("runtime/push-app-messages", bytes(2**24)),
    "slowly": _slowly,
    "unknown_path": lambda node: node.post("fleet/..%2fcontrol/start-run", b""),
    "unknown_run": _unknown_run,
    "unknown_type": lambda node: node.push(message_type="unknown"),
    "without_a_length": lambda node: node.post("fleet/push-messages", (bytes(2**20) for _ in range(64))),
}
