"""Run folders with chosen numbers, written without running anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from simulations.config.load import ExperimentConfig


def small_config(**changes: Any) -> ExperimentConfig:
    """20 clients, cohorts of 5, 12 rounds, evaluated after each."""
    base = {"clients": 20, "cohort": 5, "rounds": 12, "evaluate_every": 1}
    return ExperimentConfig.from_dict({**base, **changes})


def write_run(
    folder: Path,
    config: ExperimentConfig,
    accuracies: Sequence[float] | None,
    *,
    upload: int = 800,
    download: int = 1000,
    physical: Sequence[dict[str, float]] | None = None,
    cohort: Sequence[int] = (0, 1),
    finished: bool = True,
    **summary: Any,
) -> dict[str, Any]:
    """Write a run's folder: an accuracy (and a loss of 1 minus it) a round, the same bytes in every round."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.resolved()))
    lines = []
    for i in range(config.rounds):
        accuracy = None if accuracies is None else accuracies[i]
        lines.append(
            {
                "round": i + 1,
                "seconds": 0.5,
                "train_loss": 2.0 / (i + 1),
                "upload_bytes": upload,
                "download_bytes": download,
                "cohort": list(cohort),
                "skipped": [],
                "refused": {},
                "psi": {"raw": {}, "physical": physical[i] if physical else {}},
                "val_accuracy": accuracy,
                "val_nll": 1.0 if accuracy is None else 1.0 - accuracy,
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = {
        "method": config.method,
        "engine": config.engine,
        "workers": 1,
        "seed": config.seed,
        "rounds": config.rounds,
        "test_accuracy": None if accuracies is None else accuracies[-1],
        "test_nll": 0.5,
        "upload_ratio": 0.77,
        "seconds": 6.0,
        **summary,
    }
    if finished:
        (folder / "summary.json").write_text(json.dumps(outcome))
    return outcome


def learned(rounds: int, low: float, high: float, dropout: float = 10.0) -> list[dict[str, float]]:
    """psi over rounds: a rotation range moves to [low, high] degrees, one drop rate to ``dropout`` %."""
    steps = [(i + 1) / rounds for i in range(rounds)]
    return [
        {
            "affine.angle_min [deg]": low * t,
            "affine.angle_max [deg]": high * t,
            "dropout1.rate [%]": 10.0 + (dropout - 10.0) * t,
            "dropout2.rate [%]": 10.0,
        }
        for t in steps
    ]
