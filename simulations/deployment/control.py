"""Control: what the operator asks of a SuperLink."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import fedpart.flower.environment

# isort: split
import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error.base import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

import fedpart
from fedpart.flower.nodes import node_name
from simulations.deployment.keys import CA, TOKEN
from simulations.errors import RunError

PENDING_SECONDS = 10.0  # in which an executor takes a run, or the operator is told
_APP = """\
[project]
name = "fedpart"
version = "{version}"
[tool.flwr.app]
publisher = "fedpart"
[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "client.app:app"
[tool.flwr.app.config]
experiment = ""
out = ""
resume = false
"""


@dataclass(frozen=True)
class Run:
    """A run as the SuperLink knows it.

    Attributes:
        id: Flower's number of it.
        status: ``pending``, ``starting``, ``running``, or ``finished:completed``, ``finished:failed``,
            ``finished:stopped``.
        details: why, where it failed.
        out: the folder of its results, on the machine of the ServerApp.
    """

    id: int
    status: str
    details: str
    out: str

    @property
    def finished(self) -> bool:
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"

    @property
    def outcome(self) -> str:
        """What has become of it, and why: ``finished and failed: ...``."""
        return f"{self.status.replace(':', ' and ')}: {self.details or 'no reason is known'}"


class Control:
    """The operator's connection to a SuperLink.

    Args:
        address: ``host:port``.
        keys: the ``operator`` folder of the federation's keys.

    Raises (all methods):
        RunError: the SuperLink cannot be reached or refuses; one sentence.
    """

    def __init__(self, address: str, keys: Path) -> None:
        self.address, self.keys = address, keys
        try:
            certificates, token = (keys / CA).read_bytes(), (keys / TOKEN).read_text().strip()
        except OSError as error:
            raise RunError(
                f"The operator's keys cannot be read ({error.strerror}: {error.filename}); make them with "
                f"fedpart keys, and name their folder."
            ) from error

        def authorise(context: Any, call_next: Any) -> httpx.Response:
            context.request.headers["Authorization"] = f"Bearer {token}"
            response: httpx.Response = call_next(context)
            return response

        self._client = ControlHttpClient.from_server_address(
            address, False, certificates, [RuntimeVersionHttpInterceptor("fedpart"), _Interceptor(authorise)]
        )

    def register(self) -> tuple[int, int]:
        """Register the public keys of the folder, each as the client that its file names, and no others.

        Returns:
            How many there are, and how many were registered before, have no file any more, and no longer are.
        """
        files = {int(file.stem.partition("-")[2]): file for file in self.keys.glob("node-*.pub")}
        keys = {_public_key(file): client for client, file in sorted(files.items())}
        with self._calls():
            known = {bytes(node.public_key): node.node_id for node in self._nodes()}
            gone = known.keys() - keys.keys()
            for public in gone:
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=known[public]))
            for public, client in keys.items():
                if public not in known:
                    self._client.RegisterNode(RegisterNodeRequest(public_key=public, name=node_name(client)))
        return len(keys), len(gone)

    def nodes(self) -> dict[str, str]:
        """Status (``registered``, ``online``, ``offline``) of every SuperNode, by its name."""
        with self._calls():
            return {node.name: node.status for node in self._nodes()}

    def _nodes(self) -> list[NodeInfo]:
        """The SuperNodes that are registered."""
        found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [node for node in found if node.status != "unregistered"]

    def start(self, run_config: Mapping[str, Any]) -> int:
        """Start a run of the app that is installed with fedpart, wherever an executor runs; the run's id.

        The bundle has no code in it: executors run what is installed there.
        """
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "pyproject.toml").write_text(_APP.format(version=fedpart.__version__))
            content = build_fab_from_disk(Path(folder))
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(run_config))
        )
        with self._calls():
            return int(self._client.StartRun(request).run_id)

    def runs(self) -> list[Run]:
        """All runs, the latest first."""
        with self._calls():
            found = self._client.ListRuns(ListRunsRequest()).run_dict
        return [_run(found[id]) for id in sorted(found, key=lambda id: found[id].pending_at, reverse=True)]

    def run(self, id: int) -> Run:
        """One run."""
        with self._calls():
            return _run(self._client.ListRuns(ListRunsRequest(run_id=id)).run_dict[id])

    def follow(self, id: int, show: Callable[[str], None], patience: float = 120.0) -> Run:
        """Hand over the run's log as it grows, until the run has ended; say so if it does not begin.

        Args:
            id: of the run.
            show: receives text, lines with their ends.
            patience: seconds that the SuperLink may be away, for it may be restarted.
        """
        start = contact = time.monotonic()
        seen, told = 0.0, False
        while True:
            try:
                run = self.run(id)
                contact = time.monotonic()
                if run.status in ("pending", "starting"):  # its log would be waited for without a word
                    late = contact - start >= PENDING_SECONDS
                    if late and not told and run.status == "pending":
                        show(f"Run {id} is pending: no executor has taken it yet; see that one is up.\n")
                        told = True
                else:
                    with self._calls():
                        request = StreamLogsRequest(run_id=id, after_timestamp=seen)
                        for part in self._client.StreamLogs(request):
                            seen, contact = max(seen, part.latest_timestamp), time.monotonic()
                            show(part.log_output)
                    run = self.run(id)
                    if run.finished:
                        return run
            except Unreachable:
                if time.monotonic() - contact > patience:
                    raise
            time.sleep(1)

    @contextmanager
    def _calls(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPStatusError as error:
            known = FlowerError.from_json(error.response.text)
            why = known.message if known else f"status {error.response.status_code}"
            raise RunError(f"The SuperLink at {self.address} refuses: {why}.") from error
        except httpx.HTTPError as error:
            raise Unreachable(
                f"The SuperLink at {self.address} cannot be reached ({error}); start it, or name its address."
            ) from error


class Unreachable(RunError):
    """The SuperLink does not answer."""


class _Interceptor:
    def __init__(self, intercept: Callable[[Any, Any], httpx.Response]) -> None:
        self.intercept = intercept


def _public_key(file: Path) -> bytes:
    """A SuperNode's public key as Flower keeps it."""
    key = serialization.load_ssh_public_key(file.read_bytes())
    return public_key_to_bytes(cast(ec.EllipticCurvePublicKey, key))


def _run(found: Any) -> Run:
    status = ":".join(part for part in (found.status.status, found.status.sub_status) if part)
    config = user_config_from_proto(found.override_config)
    return Run(int(found.run_id), status, found.status.details, str(config.get("out", "")))
