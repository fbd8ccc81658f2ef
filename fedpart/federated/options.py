"""Keyword arguments of ``federate()``, for editors and type checkers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedpart.federated.pace.settings import DeviceSettings
from fedpart.federated.shares import Deal
from fedpart.training.local import LocalSettings
from fedpart.training.optimisers import AdamSettings, SGDSettings
from fedpart.training.settings import RunOptions
from fedpart.updates.stages.clip import ClipSettings
from fedpart.updates.stages.privacy import PrivacySettings


class FederationOptions(RunOptions, total=False):
    """Those of :class:`.FederationSettings` but ``clients``, which are the shards; a test holds the two
    together. A mapping stands for a group of settings, such as ``local={"learning_rate": 0.05}``.
    """

    devices: DeviceSettings | Mapping[str, Any] | None
    overselect: float
    deadline: float | None
    aggregation: Literal["synchronous", "buffered"]
    buffer: int | None
    concurrency: int | None
    staleness: Literal["none", "sqrt"]
    cohort: int
    caps: Mapping[int, float] | None
    caps_by: Deal
    architectures: Sequence[Mapping[str, Any]] | None
    sharing: Mapping[str, Any] | None
    local: LocalSettings | Mapping[str, Any]
    server: AdamSettings | SGDSettings | Mapping[str, Any]
    server_psi: AdamSettings | SGDSettings | Mapping[str, Any]
    weighting: Literal["examples", "uniform"]
    on_client_error: Literal["fail", "skip"]
    max_examples: int
    min_replies: int
    round_timeout: float
    node_timeout: float
    clip: ClipSettings | Mapping[str, Any] | Literal["adaptive"] | None
    trim: float | None
    defence: str | None
    defence_options: Mapping[str, Any]
    bucket: int
    upload: str | None
    upload_options: Mapping[str, Any]
    error_feedback: bool
    download: Literal["fp16", "bf16"] | None
    privacy: PrivacySettings | Mapping[str, Any] | None
    evaluation: Literal["central", "clients", "none"]
    evaluation_share: float | None
    evaluation_clients: int
    evaluation_samples: int | None
