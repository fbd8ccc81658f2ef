"""Requests to a SuperLink's app, part by part, without a network."""

import asyncio
from base64 import b64encode
from datetime import timedelta

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.superlink.main import create_app
from superlink_state import tables_that_are_made


class Asked:
    """A request under way: ``parts`` of its body that have been read, status and body of the answer."""

    def __init__(self, app, path, body=(), headers=(), address="192.0.2.1"):
        self.app, self._body, self.parts = app, body, 0
        self.status, self.body, self._left = 0, b"", asyncio.Event()
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "https",
            "query_string": b"",
            "headers": [
                (b"content-type", b"application/protobuf"),
                *((name.lower().encode(), value.encode()) for name, value in headers),
            ],
            "client": (address, 1),
            "server": ("127.0.0.1", 8000),
        }

    async def _parts(self):
        body = [self._body] if isinstance(self._body, bytes) else self._body
        for part in body:
            self.parts += 1
            yield {"type": "http.request", "body": part, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        yield {"type": "http.disconnect"}

    def leave(self):
        """The caller has gone."""
        self._left.set()

    async def answered(self):
        parts = self._parts()

        async def send(message):
            self.status = message.get("status", self.status)
            self.body += message.get("body", b"")

        await self.app(self.scope, parts.__anext__, send)
        return self


def ask(*given, **more):
    """One request, answered."""
    return asyncio.run(Asked(*given, **more).answered())


class Served:
    """The app of a SuperLink with one registered node, whose state is in a folder."""

    def __init__(self, folder, monkeypatch):
        monkeypatch.setenv("FLWR_DATABASE", str(folder / "state.db"))
        with tables_that_are_made():
            self.app = create_app()
            self.state = self.app.state.linkstate_factory.state()
        self._private, public = generate_key_pairs()
        self._public = public_key_to_bytes(public)
        self.id = self.state.create_node("me", "me", self._public, 30)
        assert self.state.activate_node(self.id, 30)
        self.node = Node(node_id=self.id)

    def signed(self, ahead=0):
        """Heads of a request of the node, whose clock is so many seconds ahead."""
        moment = (now() + timedelta(seconds=ahead)).isoformat()
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self._public).decode(),
            TIMESTAMP_HEADER: moment,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(self._private, moment.encode())).decode(),
        }.items()
