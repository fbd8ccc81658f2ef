"""What an operator asks of a SuperLink: it registers nodes, and starts runs.

The faults: a run whose ServerApp has died is failed, and stays so; who has submitted it can tell by its
details. And Flower packs an app by a private function, or by a command that takes seconds."""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from flwr.cli.build import build_fab_from_disk

from fedpart.flower.workarounds.protocol import message

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


def submitted(run: Any) -> SubmittedRun:
    """A run as the SuperLink tells of it."""
    status = ":".join(part for part in (run.status.status, run.status.sub_status) if part)
    config = {key: getattr(value, value.WhichOneof("scalar")) for key, value in run.override_config.items()}
    return SubmittedRun(int(run.run_id), status, run.status.details, str(config.get("out", "")), config)


def start_request(app: str, run_config: Mapping[str, Any]) -> Any:
    """What starts a run of an app that consists of a ``pyproject.toml`` alone, with that text."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(app)
        content = build_fab_from_disk(Path(folder))
    fab, scalar = {"hash_str": hashlib.sha256(content).hexdigest(), "content": content}, message("Scalar")
    config = {key: scalar(**{SCALARS[type(value)]: value}) for key, value in run_config.items()}
    return message("StartRunRequest")(fab=fab, override_config=config)


def public_key(text: bytes) -> bytes:
    """A SuperNode's public key as Flower keeps it, from its OpenSSH form."""
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return serialization.load_ssh_public_key(text).public_bytes(encoding, form)
