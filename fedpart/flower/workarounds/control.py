"""Calls of a SuperLink's Control API, by which an operator registers nodes and starts runs.

The faults: Flower has no public interface to it but the command ``flwr``, which keeps connections in a file
of the user's, packs the current folder, and takes no token of ours. And a run whose ServerApp has died is
failed, and stays so; who has submitted it can tell by its details.

The tests: ``test_faults.py::test_flower_has_no_public_client_of_the_control_api`` and
``test_a_run_whose_serverapp_has_died_is_failed`` there.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

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

UNHEARD = "No heartbeat received"


@dataclass(frozen=True)
class SubmittedRun:
    """A run as the SuperLink knows it.

    Attributes:
        id: Flower's number of it.
        status: ``pending``, ``starting``, ``running``, or ``finished:completed``, ``finished:failed``,
            ``finished:stopped``.
        details: why, where it failed.
        out: the folder of its results, on the machine of the ServerApp.
        config: the run config that it was started with.
    """

    id: int
    status: str
    details: str
    out: str
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether it has ended as it should."""
        return self.status == "finished:completed"

    @property
    def died(self) -> bool:
        """Whether it has ended because its ServerApp was not heard of any more."""
        return self.status == "finished:failed" and self.details.startswith(UNHEARD)

    @property
    def outcome(self) -> str:
        """What has become of it, and why: ``finished and failed: ...``."""
        return f"{self.status.replace(':', ' and ')}: {self.details or 'no reason is known'}"


class ControlCalls:
    """The calls that an operator needs.

    Args:
        address: ``host:port``.
        certificates: of the authority that the SuperLink's certificate is signed by, in PEM form.
        token: the operator's.

    Raises (all methods):
        httpx.HTTPStatusError: the SuperLink refuses; see :func:`refusal`.
        httpx.HTTPError: it cannot be reached.
    """

    def __init__(self, address: str, certificates: bytes, token: str) -> None:
        def authorise(context: Any, call_next: Any) -> httpx.Response:
            context.request.headers["Authorization"] = f"Bearer {token}"
            return cast(httpx.Response, call_next(context))

        bearer: Any = SimpleNamespace(intercept=authorise)
        interceptors = [RuntimeVersionHttpInterceptor("fedpart"), bearer]
        self._client = ControlHttpClient.from_server_address(address, False, certificates, interceptors)

    def nodes(self) -> list[NodeInfo]:
        """The SuperNodes that are registered."""
        found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [node for node in found if node.status != "unregistered"]

    def register(self, public: bytes, name: str) -> None:
        """Register a SuperNode's public key under a name."""
        self._client.RegisterNode(RegisterNodeRequest(public_key=public, name=name))

    def unregister(self, node_id: int) -> None:
        """Withdraw the key of a SuperNode."""
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node_id))

    def start(self, app: str, run_config: Mapping[str, Any]) -> int:
        """Start a run of an app that consists of a ``pyproject.toml`` alone, with that text; the run's id."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "pyproject.toml").write_text(app)
            content = build_fab_from_disk(Path(folder))
        fab = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
        config = user_config_to_proto(dict(run_config))
        return int(self._client.StartRun(StartRunRequest(fab=fab, override_config=config)).run_id)

    def runs(self, id: int | None = None) -> list[SubmittedRun]:
        """All runs, the latest first; or the one of that id."""
        found = self._client.ListRuns(ListRunsRequest(run_id=id)).run_dict.values()
        return [_submitted(run) for run in sorted(found, key=lambda run: run.pending_at, reverse=True)]

    def log(self, id: int, after: float) -> Iterator[tuple[float, str]]:
        """Parts of a run's log that are newer than ``after``, each with its time, until the run has ended."""
        for part in self._client.StreamLogs(StreamLogsRequest(run_id=id, after_timestamp=after)):
            yield part.latest_timestamp, part.log_output


def refusal(response: httpx.Response) -> str:
    """Why a SuperLink refuses; a clause."""
    known = FlowerError.from_json(response.text)
    return known.message if known else f"status {response.status_code}"


def public_key(text: bytes) -> bytes:
    """A SuperNode's public key as Flower keeps it, from its OpenSSH form."""
    return public_key_to_bytes(cast(ec.EllipticCurvePublicKey, serialization.load_ssh_public_key(text)))


def _submitted(run: Any) -> SubmittedRun:
    status = ":".join(part for part in (run.status.status, run.status.sub_status) if part)
    config = user_config_from_proto(run.override_config)
    return SubmittedRun(int(run.run_id), status, run.status.details, str(config.get("out", "")), config)
