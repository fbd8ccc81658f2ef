"""What an operator asks of a SuperLink: it registers nodes, and starts runs.

The faults: a run whose ServerApp has died is failed, and stays so; who has submitted it can tell by its
details. And Flower packs an app by a private function, or by a command that takes seconds.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from flwr.cli.build import build_fab_from_disk

from fedpart.flower.workarounds.protocol import ApiCalls, message

SCALARS = {bool: "bool", int: "sint64", float: "double", str: "string"}
UNHEARD = "No heartbeat received"


@dataclass(frozen=True)
class SubmittedRun:
    """A run as the SuperLink knows it; its results are in the folder ``out``, at the ServerApp."""

    id: int
    status: str  # pending, starting, running, or finished:completed, finished:failed, finished:stopped
    details: str  # why, where it failed
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
    """The calls that an operator needs, see :class:`.ApiCalls`; ``token`` is his."""

    def __init__(self, address: str, certificates: bytes, token: str) -> None:
        self._call = ApiCalls("control", address, certificates, lambda: {"Authorization": f"Bearer {token}"})

    def nodes(self) -> list[Any]:
        """The SuperNodes that are registered: each with ``node_id``, ``name``, ``public_key``, ``status``."""
        return [node for node in self._call("ListNodes").nodes_info if node.status != "unregistered"]

    def register(self, public: bytes, name: str) -> None:
        """Register a SuperNode's public key under a name."""
        self._call("RegisterNode", public_key=public, name=name)

    def unregister(self, node_id: int) -> None:
        """Withdraw the key of a SuperNode."""
        self._call("UnregisterNode", node_id=node_id)

    def start(self, app: str, run_config: Mapping[str, Any]) -> int:
        """Start a run of an app that consists of a ``pyproject.toml`` alone, with that text; the run's id."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "pyproject.toml").write_text(app)
            content = build_fab_from_disk(Path(folder))
        fab = message("Fab")(hash_str=hashlib.sha256(content).hexdigest(), content=content)
        scalar = message("Scalar")
        config = {key: scalar(**{SCALARS[type(value)]: value}) for key, value in run_config.items()}
        return int(self._call("StartRun", fab=fab, override_config=config).run_id)

    def runs(self, id: int | None = None) -> list[SubmittedRun]:
        """All runs, the latest first; or the one of that id."""
        known = self._call("ListRuns", run_id=id).run_dict.values()
        return [_submitted(run) for run in sorted(known, key=lambda run: run.pending_at, reverse=True)]

    def log(self, id: int, after: float) -> Iterator[tuple[float, str]]:
        """Parts of a run's log that are newer than ``after``, each with its time, until the run has ended."""
        for part in self._call.stream("StreamLogs", run_id=id, after_timestamp=after):
            yield part.latest_timestamp, part.log_output


def public_key(text: bytes) -> bytes:
    """A SuperNode's public key as Flower keeps it, from its OpenSSH form."""
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return serialization.load_ssh_public_key(text).public_bytes(encoding, form)


def _submitted(run: Any) -> SubmittedRun:
    status = ":".join(part for part in (run.status.status, run.status.sub_status) if part)
    config = {key: getattr(value, value.WhichOneof("scalar")) for key, value in run.override_config.items()}
    return SubmittedRun(int(run.run_id), status, run.status.details, str(config.get("out", "")), config)
