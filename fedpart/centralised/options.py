"""Keyword arguments of ``fit()``, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedpart.training.optimisers import OptimiserSettings
from fedpart.training.options import RunOptions


class TrainingOptions(RunOptions, total=False):
    """Those of :class:`.TrainingSettings`; a test holds the two together. A mapping stands for a group of
    settings, such as ``optimiser={"name": "sgd", "momentum": 0.9}``.
    """

    weight_decay: float
    decay_scaling: Literal["reciprocal", "square_root", "none"]
    iterations: int
    batch_size: int
    psi_batch_size: int | None
    psi_every: int
    optimiser: OptimiserSettings | Mapping[str, Any]
    scalars: float
    optimiser_psi: OptimiserSettings | Mapping[str, Any]
    schedule: Literal["constant", "cosine"]
    final_rate: float
    schedule_iterations: int | None
    keep_best: bool
