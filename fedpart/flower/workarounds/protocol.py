"""Flower's protocol: its messages, by their names in ``flwr.proto``, and calls of its APIs by plain HTTPS.

The fault: Flower has no public client of its APIs but the command ``flwr``, which takes seconds for a call,
keeps connections in a file of the user's, and takes no token of ours."""

import importlib
import ipaddress
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from importlib.metadata import version
from typing import Any

import httpx
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from google.protobuf import descriptor_pool, message_factory  # type: ignore[import-untyped]

for _api in ("flwr.proto.control_pb2", "flwr.proto.fleet_pb2", "flwr.proto.runtime_pb2"):
    importlib.import_module(_api)  # it registers the messages of its calls, and all those within

SECONDS = 30.0  # that a call may take
KIND = "application/protobuf"
STREAM = {"accept": "application/flower-protobuf-stream", "accept-encoding": "identity"}
NODE_KEY, TASK_TOKEN = "flwr-public-key", "flwr-task-token"  # heads of requests
CLIENT_APP = "flwr-clientapp"  # a kind of task
LENGTH = 4  # bytes in front of each part of a stream, the first of which counts most
SHARE, SHORTEST = 0.1, 0.02  # of the time that has passed; seconds


def patch(of: Any, **functions: Any) -> None:
    """Let a module or a class of Flower's have these functions in the place of those of the same names.

    A namespace may take the place of a module that it calls in the middle of functions of its own, around
    which nothing can be put: a call that another version of Flower adds then fails in the tests."""
    for name, function in functions.items():
        getattr(of, name)  # another version of Flower may have none: better no process than one unguarded
        setattr(of, name, function)


@cache
def retry_handshakes() -> None:
    """Let this process ask again where a handshake took too long, or was cut off.

    The fault: Flower takes every error of which the text has an ``ssl`` for a certificate that is wrong, and
    gives up. So a SuperNode ended where its SuperLink was busy for some seconds."""
    send = httpx.Client.send

    @wraps(send)
    def sent(client: httpx.Client, request: httpx.Request, **more: Any) -> httpx.Response:
        try:
            return send(client, request, **more)
        except httpx.TransportError as error:
            if isinstance(error, httpx.TimeoutException) or "eof occurred" in str(error).lower():
                raise type(error)("It took too long, or was cut off.", request=request) from error
            raise

    patch(httpx.Client, send=sent)


def clock_fault(ahead: float) -> str:
    """What is wrong with a SuperNode's clock, so many seconds ahead of ours; nothing if it will do."""
    early, late = SYSTEM_TIME_TOLERANCE, SYSTEM_TIME_TOLERANCE + TIMESTAMP_TOLERANCE
    if -late < ahead < early:
        return ""
    off = f"{abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} the SuperLink's"
    bounds = f"may be {early} s ahead or {late} s behind"
    return f"The SuperNode's clock is {off}, and {bounds}; set both by NTP and start the SuperNode again."


def pause(passed: float, longest: float) -> float:
    """Seconds until the next look for something, of at most those that Flower waits, ``longest``.

    What takes long is looked for seldom, and seen at most a tenth later than it came: a node that a large
    federation seldom asks costs its server as little as one that is asked often."""
    return min(max(SHARE * passed, SHORTEST), longest)


def message(name: str) -> Any:
    """The class of a message of the protocol, such as ``ObjectTree``."""
    described = descriptor_pool.Default().FindMessageTypeByName(f"flwr.proto.{name}")
    return message_factory.GetMessageClass(described)


class ApiCalls:
    """Calls of an API: ``control``, ``fleet`` or ``runtime``; httpx.HTTPStatusError: see :func:`refusal`.

    ``certificates`` are of the authority, in PEM form, None: as the system has them; by the ``heads`` of each
    request the caller proves who it is."""

    def __init__(
        self, api: str, address: str, certificates: bytes | None, heads: Callable[[], Mapping[str, str]],
        insecure: bool = False,
    ) -> None:  # fmt: skip
        about = {"flwr-package-name": "flwr", "flwr-package-version": version("flwr")}
        self._client = httpx.Client(
            base_url=f"http{'' if insecure else 's'}://{address}/v1/{api}/",
            verify=ssl.create_default_context(cadata=certificates.decode() if certificates else None),
            timeout=SECONDS,
            trust_env=not _is_here(address),  # the environment's proxies do not reach this machine
            headers={**about, "flwr-component-name": "fedpart", "content-type": KIND, "accept": KIND},
        )
        self._heads = heads

    def __call__(self, name: str, request: Any = None, /, **fields: Any) -> Any:
        """The answer to a call, such as ``ListNodes``."""
        if request is None:
            request = message(f"{name}Request")(**fields)
        sent = self._client.post(_path(name), content=request.SerializeToString(), headers=self._heads())
        return message(f"{name}Response").FromString(sent.raise_for_status().content)

    def stream(self, name: str, /, **fields: Any) -> Iterator[Any]:
        """The answers to a call, as they come."""
        content = message(f"{name}Request")(**fields).SerializeToString()
        heads, patience = {**self._heads(), **STREAM}, httpx.Timeout(SECONDS, read=None)
        asked = {"content": content, "headers": heads, "timeout": patience}
        with self._client.stream("POST", _path(name), **asked) as sent:
            if sent.is_error:
                sent.read()
            rest, kind = b"", message(f"{name}Response")
            for more in sent.raise_for_status().iter_bytes():
                rest += more
                while len(rest) >= LENGTH and len(rest) >= (end := LENGTH + int.from_bytes(rest[:LENGTH])):
                    yield kind.FromString(rest[LENGTH:end])
                    rest = rest[end:]

    def close(self) -> None:
        """End the connections."""
        self._client.close()


def _is_here(address: str) -> bool:
    """Whether ``host:port`` is this machine by its very name."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _path(name: str) -> str:
    """``list-nodes`` of ``ListNodes``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def refusal(response: httpx.Response) -> str:
    """Why a server refuses; a clause."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = None
    return detail if isinstance(detail, str) else f"status {response.status_code}"
