"""The SuperLink's door: what a caller can make it do is bounded before it is done.

The faults: Flower reads a request, whatever its size and for as long as it takes, before it knows who sends
it. It works at as many requests of one node as it has threads, and lets a node ask, and be refused, for ever.
And each request goes through seven layers, so that with 200 nodes their signs of life, and questions to which
the answer is that there is nothing, take all of a processor: these are answered here.

Here a caller is known from the heads of its request: a node by its signature, a ServerApp by its token. How
much it may send, at a time and in the long run, follows from that, which no proxy in front could know. What
goes beyond is answered with status 400 (too large, too slow) or 429 (too many). A node whose clock is off,
whose signatures Flower refuses without a reason, is told so. Who asks as a node and is none is counted by the
address. The operator's calls need his token, which Flower asks for before it reads; but for those that would
give him one, where everybody is a stranger."""

import asyncio
import gc
import json
import math
import sys
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging import WARNING, getLogger
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse, Response
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, SUPERLINK_NODE_ID, TIMESTAMP_HEADER
from flwr.superlink.routers.fleet import node_auth
from flwr.superlink.servicer.fleet import fleet_handlers
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from fedpart.flower.workarounds.metrics import count
from fedpart.flower.workarounds.protocol import KIND, NODE_KEY, TASK_TOKEN, clock_fault, message, patch

CONTROL, FLEET, RUNTIME = "/v1/control/", "/v1/fleet/", "/v1/runtime/"
LOG_IN = {CONTROL + name for name in ("get-login-details", "get-auth-tokens", "refresh-auth-tokens")}
STRANGER_BYTES = 2**16  # of a request, from whom nobody knows, or a node's that carries nothing
HELD = {FLEET + "pull-messages": 20.0, RUNTIME + "pull-messages": 2.0}  # seconds; Flower's clients wait 30
ALIVE = FLEET + "send-node-heartbeat"
NODE_BYTES = {
    "/v1/fleet/push-messages": 2**20,  # the names of a message's parts, or an error with its traceback
    "/v1/fleet/push-object": FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 2**20,
}
SERVERAPP_BYTES = 2**26  # names of the parts of a round's messages
AT_A_TIME = 4  # requests of a caller: two parts of a message, a heartbeat, and one to spare
WAITING = 16
BURST, PER_SECOND, REFUSED = 2000.0, 200.0, 100.0  # requests; what one that is refused costs besides
PATIENCE = 30.0  # seconds for a request to come, and one more for
PACE = 2**14  # bytes of what it may have
CALLERS = 10_000  # that are remembered while they ask nothing
TELL_SECONDS = 10.0  # between two lines about the same caller
TOLD = (400, 401, 429, 500)  # statuses
SERVER: dict[str, Any] = {"http": "h11"}  # of uvicorn; this one bounds heads, too
log = getLogger("flwr").log


@dataclass
class Caller:
    """A node, or an address, and what it has asked."""

    name: str  # under which its key is registered, or its number; its address
    node: int | None = None  # its number, if it is a node
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))
    here: int = 0  # requests, those that wait among them
    account: float = BURST  # requests that it may make at once; below 0 after many that were refused
    seen: float = field(default_factory=lambda: time.monotonic())
    told: float = -TELL_SECONDS

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A request of it is here, and is worked at when its turn comes; HTTPException: it has too many."""
        now = time.monotonic()
        self.account, self.seen = min(BURST, self.account + PER_SECOND * (now - self.seen)), now
        if self.account < 1 or self.here >= AT_A_TIME + WAITING:
            raise HTTPException(429, "There are too many requests of this caller; ask again later.")
        self.account -= 1
        self.here += 1
        try:
            async with self.places:
                yield
        finally:
            self.here -= 1

    def refused(self, path: str, status: int, why: str) -> None:
        """Take from its account, and say so, if nothing has been said of it for a while."""
        self.account = max(self.account - REFUSED, -BURST)
        if status in TOLD and self.seen - self.told >= TELL_SECONDS:
            self.told = self.seen
            log(WARNING, "%s is refused, with status %s at %s: %s", self.name, status, path, why)


class Door:
    """What every request comes through; an ASGI app."""

    def __init__(self, app: Any, arrivals: Any) -> None:
        self._app, self._arrivals = app, arrivals
        self._callers: dict[int | str, Caller] = {}  # nodes by number, others by address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        path = scope.get("path", "")
        by_token = path.startswith(CONTROL) and path not in LOG_IN
        if scope["type"] != "http" or by_token:
            await self._app(scope, receive, send)
            return
        request, answer = Request(scope), _Answer(send)
        caller, who, limit = None, None, STRANGER_BYTES
        if path.startswith(FLEET):
            caller = await self._caller(request)
            if caller.node is not None:
                who, limit = (caller.node, 0), NODE_BYTES.get(path, limit)
        elif path in HELD or (path.startswith(RUNTIME) and _length(request) > limit):
            task = await run_in_threadpool(self._task, request)
            who, limit = ((SUPERLINK_NODE_ID, task.run_id), SERVERAPP_BYTES) if task else (None, limit)
        try:
            async with nullcontext() if caller is None else caller.place():
                if fault := getattr(request.state, "clock_fault", ""):
                    raise HTTPException(401, fault)
                body = await _read(request, receive, limit)
                short = await self._short(path, who, body, receive) if who else None
                if short is None:
                    await self._app(scope, _again(body, receive), answer)
                else:
                    await Response(short, media_type=KIND)(scope, receive, answer)
        except ClientDisconnect:
            return
        except HTTPException as error:
            if answer.status:
                raise
            refusal = JSONResponse({"detail": error.detail}, error.status_code, {"Connection": "close"})
            await refusal(scope, receive, answer)
        count("superlink_requests", status=str(answer.status))
        if caller is not None and answer.status >= 400:
            caller.refused(path, answer.status, answer.why())

    async def _short(self, path: str, who: tuple[int, int], body: bytes, receive: Receive) -> bytes | None:
        """Flower's answer, where it can be told without Flower; ClientDisconnect: nobody waits for it."""
        if path == ALIVE:
            return await run_in_threadpool(self._alive, who[0], body)
        if path not in HELD:
            return None
        waits = asyncio.ensure_future(self._arrivals.wait(who, HELD[path]))
        leaves = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({waits, leaves}, return_when=asyncio.FIRST_COMPLETED)
            if leaves.done():
                raise ClientDisconnect
            return b"" if waits.result() and path.startswith(FLEET) else None
        finally:
            waits.cancel()
            leaves.cancel()

    def _alive(self, node: int, body: bytes) -> bytes | None:
        """The answer to a node's sign of life; None: something is wrong with it, and Flower says what."""
        with suppress(Exception):
            request = message("SendNodeHeartbeatRequest").FromString(body)
            if request.node.node_id == node:
                return bytes(fleet_handlers.send_node_heartbeat(request, self._state()).SerializeToString())
        return None

    async def _caller(self, request: Request) -> Caller:
        """The node that asks, or the address."""
        node = await run_in_threadpool(self._node, request)
        key = node if node is not None else request.client.host if request.client else ""
        if key not in self._callers:
            if len(self._callers) >= CALLERS:
                self._callers = {key: caller for key, caller in self._callers.items() if caller.here}
            name = str(key) if node is None else await run_in_threadpool(self._name, node)
            self._callers.setdefault(key, Caller(name, node))
        return self._callers[key]

    def _node(self, request: Request) -> int | None:
        """Number of the node that has signed the heads; None: nobody has whose key is registered."""
        try:
            key = b64decode(request.headers[NODE_KEY], validate=True)
            node: int | None = self._state().get_node_id_by_public_key(key)
            if node is not None:
                claim = SimpleNamespace(protobuf_request=message("ActivateNodeRequest")(public_key=key))
                proof: Any = SimpleNamespace(headers=request.headers, state=claim)
                node_auth.authenticate_node(proof)
            return node
        except HTTPException:
            with suppress(KeyError, ValueError, TypeError):
                said = datetime.fromisoformat(request.headers[TIMESTAMP_HEADER])
                request.state.clock_fault = clock_fault((said - datetime.now(UTC)).total_seconds())
        except (KeyError, ValueError):
            pass
        return None

    def _name(self, node: int) -> str:
        known = self._state().get_node_info(node_ids=[node])
        return f"{known[0].name or 'the node'} (node {node})" if known else f"node {node}"

    def _task(self, request: Request) -> Any:
        token = request.headers.get(TASK_TOKEN, "")
        return self._state().get_task_by_token(token) if token else None

    def _state(self) -> Any:
        return self._app.state.linkstate_factory.state()


class _Answer:
    """Passes an answer on, and remembers its status and the beginning of a refusal."""

    def __init__(self, send: Send) -> None:
        self._send, self._body = send, b""
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self.status >= 400:
            self._body += message.get("body", b"")[:STRANGER_BYTES]
        await self._send(message)

    def why(self) -> str:
        """What the refusal says."""
        try:
            return str(json.loads(self._body)["detail"])[:300]
        except (ValueError, KeyError, TypeError):
            return "no reason is known"


async def _read(request: Request, receive: Receive, limit: int) -> bytes:
    """A request's body; HTTPException: it is too large, or is not here in time; ClientDisconnect."""
    too_large = HTTPException(400, f"A request of this caller may have {limit} bytes here.")
    if limit < _length(request) < math.inf:
        raise too_large
    parts, left = list[bytes](), limit
    try:
        async with asyncio.timeout(PATIENCE + limit / PACE):
            while True:
                if (message := await receive())["type"] == "http.disconnect":
                    raise ClientDisconnect
                parts.append(message.get("body", b""))
                left -= len(parts[-1])
                if left < 0:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise HTTPException(400, "The request has taken too long to come.") from None


def _length(request: Request) -> float:
    """Bytes that the body says it has; infinity: it does not say."""
    said = request.headers.get("content-length", "")
    return int(said) if said.isdecimal() else math.inf


def _again(body: bytes, receive: Receive) -> Receive:
    """What hands a body on, and then tells when the caller has gone."""
    rest = iter([body])

    async def first() -> Message:
        for content in rest:
            return {"type": "http.request", "body": content, "more_body": False}
        return await receive()

    return first


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def open_door(flower: Any, arrivals: Any) -> None:
    """Let every request to this process's SuperLink come through a :class:`Door`; none holds up its end."""
    leave = uvicorn.Server.handle_exit

    def run(app: Any, **more: Any) -> None:
        gc.freeze()  # else what is here to stay is looked through again and again
        gc.set_threshold(5_000, 20, 50)
        sys.setswitchinterval(0.0005)  # seconds; who has the database waits for the interpreter at each step
        uvicorn.run(Door(app, arrivals), **SERVER, **more)

    def end(server: uvicorn.Server, *signal: Any) -> None:
        with suppress(RuntimeError):  # nothing is served yet
            asyncio.get_running_loop().call_soon_threadsafe(arrivals.end)
        leave(server, *signal)

    patch(uvicorn.Server, handle_exit=end)
    patch(flower, uvicorn=SimpleNamespace(run=run))
