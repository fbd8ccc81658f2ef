"""The lines of metrics.jsonl."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from fedpart import RoundReport
from fedpart.centralised.fit import TrainingReport

Report = RoundReport | TrainingReport

# beginnings of keys that a line has only where they have a value
_OPTIONAL = (
    "epsilon",
    "server_rates",
    "examples",
    "client_seconds",
    "client_accuracy_caps",
    "client_nll_caps",
    *(f"{name}_architectures" for name in ("val_accuracy", "val_nll", "client_accuracy", "client_nll")),
    "simulated_seconds",
    "staleness",
)


def metrics_line(report: Report) -> dict[str, Any]:
    """A report as a line of ``metrics.jsonl``; the same run gives the same line, seconds apart.

    Of a round: ``round, seconds`` (wall-clock, with the evaluation on evaluation rounds), ``train_loss``
    (nats), ``lml`` (L_ML per example, nats; null where no client of the cohort has scored a subnetwork that
    has never seen it), ``upload_bytes, download_bytes`` (of the cohort), ``cohort`` (client numbers),
    ``skipped`` ([{client, category, reason}]), ``refused`` ({category: how often}: of the skipped clients,
    and of ``repeated`` and ``late`` messages, which are in no sum), ``replies`` (updates taken), ``stepped``
    (whether they were enough), with privacy ``epsilon`` (spent so far), without it ``examples`` and
    ``client_seconds`` (what clients have computed, see :class:`.RoundReport`), and with ``hypergradient``
    ``server_rates`` (of w_1..w_C and psi). Of centralised training, where a
    report stands for the iterations since the one before: ``iteration, seconds, train_loss`` (their mean) and
    ``lml`` (L_ML, or the estimate that ``evidence`` names, nats summed over the examples; null without one).

    With ``devices`` also ``simulated_seconds`` (from the run's beginning to the round's end), with buffered
    aggregation ``staleness`` (mean steps since the cohort's clients started; ``download_bytes`` are then of
    the clients that have started in the round).

    Of both: ``psi`` ({raw: {name: [..]}, physical: {name: value}}) and, where there was an evaluation,
    ``val_accuracy`` (a fraction; null without classes) and ``val_nll`` (nats per example). Where clients have
    evaluated, ``client_accuracy`` and ``client_nll``, of both ``_worst_decile``, ``_chunks`` ([of chunk 1,
    ..]) and, with ``caps``, ``_caps``, and ``evaluation_bytes``. With ``architectures`` all four scores have
    ``_architectures`` too, see :class:`.RoundReport`.
    """
    line = asdict(report)
    line["seconds"] = round(report.seconds, 4)
    line["psi"] = {"raw": line.pop("psi"), "physical": line.pop("physical")}
    line.pop("stage", None)  # its end has scores of its own, which the runner adds
    if report.val_nll is None:
        del line["val_accuracy"], line["val_nll"]
    if line.get("client_seconds") is not None:
        line["client_seconds"] = round(line["client_seconds"], 4)
    optional = (
        _OPTIONAL if line.get("evaluation_bytes") is not None else (*_OPTIONAL, "client_", "evaluation_")
    )
    plain: dict[str, Any] = finite(
        {key: value for key, value in line.items() if value is not None or not key.startswith(optional)}
    )
    return plain


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null in their place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value
