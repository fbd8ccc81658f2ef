"""Keyword arguments of ``federate()``, for editors; shares of clients among them, checked."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedpart.checks import is_list
from fedpart.federated.pace.settings import DeviceSettings
from fedpart.partition.proportions import check_proportions
from fedpart.training.local import LocalSettings
from fedpart.training.optimisers import AdamSettings, SGDSettings
from fedpart.training.settings import RunOptions
from fedpart.updates.stages.clip import ClipSettings
from fedpart.updates.stages.privacy import PrivacySettings

Deal = Literal["chunk", "free"]


def checked_caps(caps: Any, chunks: int) -> dict[int, float]:
    """The shares by cap, ascending."""
    if not isinstance(caps, Mapping):
        raise ValueError(f"caps are shares of the clients by cap, {{1: 0.4, 3: 0.6}} say, got {caps!r}.")
    if unknown := [cap for cap in caps if type(cap) is not int or not 1 <= cap <= chunks]:
        fault = f"A cap is the number of a subnetwork, of which there are {chunks} as there are chunks, got"
        raise ValueError(f"{fault} {unknown[0]!r}; use caps from 1 to {chunks}.")
    shares = check_proportions([caps[cap] for cap in sorted(caps)], "shares of caps")
    return dict(zip(sorted(caps), shares, strict=True))


def checked_architectures(given: Any) -> tuple[Mapping[str, Any], ...]:
    """Each with its ``share`` and ``model_options``."""
    known = {"share", "model_options"}
    if (
        not is_list(given)
        or not len(given)
        or not all(isinstance(size, Mapping) and "share" in size and size.keys() <= known for size in given)
    ):
        raise ValueError(
            f"architectures are a list of {{share: 0.4, model_options: {{width: 0.5}}}}, one for each size "
            f"of the network, got {given!r}."
        )
    shares = check_proportions([size["share"] for size in given], "shares of architectures")
    options = [dict(size.get("model_options") or {}) for size in given]
    if twice := [size for size in options if options.count(size) > 1]:
        raise ValueError(f"Two architectures have the model_options {twice[0]}; give each size once.")
    return tuple({"share": share, "model_options": size} for share, size in zip(shares, options, strict=True))


class FederationOptions(RunOptions, total=False):
    """Those of :class:`.FederationSettings` but ``clients``, which are the shards; a test holds the two
    together. A mapping stands for a group of settings, such as ``local={"learning_rate": 0.05}``.
    """

    devices: DeviceSettings | Mapping[str, Any] | str | None
    overselect: float
    deadline: float | None
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
    defence: str | None
    defence_options: Mapping[str, Any]
    upload: str | None
    upload_options: Mapping[str, Any]
    error_feedback: bool
    download: Literal["fp16", "bf16"] | None
    privacy: PrivacySettings | Mapping[str, Any] | None
    evaluation: Literal["central", "clients", "none"]
    evaluation_share: float | None
    evaluation_clients: int
    evaluation_samples: int | None
    keep_best: Literal["lml"] | None
