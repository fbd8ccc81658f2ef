"""What a SuperLink and a SuperNode show of themselves, read over HTTP as Prometheus does."""

import asyncio
import urllib.request

import httpx
import pytest
import refusals
from flwr.common.constant import SubStatus
from one_message import OneMessage

from fedpart.flower.workarounds import metrics
from fedpart.flower.workarounds.door import Door
from fedpart.flower.workarounds.supernode import State

pytest.importorskip("prometheus_client")


@pytest.fixture
def shown(monkeypatch):
    """What serves on a free port, and reads there."""
    servers = []

    def serve(*given):
        monkeypatch.setenv(metrics.ADDRESS, "127.0.0.1:0")
        servers.append(metrics.serve(*given))

    def read():
        host, port = servers[-1].server_address[:2]
        text = urllib.request.urlopen(f"http://{host}:{port}/metrics").read().decode()
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("fedpart_"))

    monkeypatch.setattr(metrics, "_counters", {})
    yield serve, read
    for server in servers:
        server.shutdown()
        server.server_close()


def test_requests_are_counted_by_what_became_of_them(shown):
    serve, read = shown

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def asked():
        transport = httpx.ASGITransport(app=Door(app, None))
        async with httpx.AsyncClient(transport=transport, base_url="http://superlink") as client:
            await client.get("/health")
            await client.post("/health", content=bytes(2**26))

    coming = [3]
    serve({"superlink_requests": "status"}, {"superlink_queue": lambda: coming[0]})
    asyncio.run(asked())
    coming.append(coming.pop() + 1)
    said = read()
    counts = {
        key: float(value) for key, value in said.items() if key.startswith("fedpart_superlink_requests_total")
    }
    assert counts == {
        'fedpart_superlink_requests_total{status="200"}': 1.0,
        'fedpart_superlink_requests_total{status="400"}': 1.0,
    }
    assert float(said["fedpart_superlink_queue"]) == 4.0


def test_a_node_counts_its_messages_replies_and_failures(shown):
    serve, read = shown
    node = OneMessage(State)
    serve({"supernode_failures": "", "supernode_replies": ""}, {"supernode_queue": lambda: 1})
    node.fetched()
    assert node.state.finish_task(node.task, SubStatus.FAILED, "It has raised.")
    assert len(node.replies()) == 1
    assert float(read()["fedpart_supernode_failures_total"]) == 1.0
    assert float(read()["fedpart_supernode_replies_total"]) == 1.0


def test_nothing_listens_and_nothing_is_counted_without_an_address(monkeypatch):
    monkeypatch.delenv(metrics.ADDRESS, raising=False)
    assert metrics.serve({"a": ""}, {}) is None
    metrics.count("a")
    assert not metrics._counters


def test_what_is_no_address(monkeypatch):
    def serve(address):
        monkeypatch.setenv(metrics.ADDRESS, address)
        metrics.serve({}, {})

    says = "FEDPART_METRICS is host:port"
    refusals.check((a, lambda a=a: serve(a), ValueError, says) for a in ("9464", "here:", "here:there"))
