"""Keyword arguments of every run, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fedpart.parameters.assigned import Defaults


class RunOptions(TypedDict, total=False):
    """Those of :class:`.RunSettings`, which says what they are; a test holds the two together."""

    method: str
    method_options: Mapping[str, Any]
    chunks: Sequence[float]
    parameters: Sequence[float] | None
    seed: int
    scheme: str
    defaults: Defaults
    chain: Sequence[str] | None
    device: str
