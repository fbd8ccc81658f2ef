"""fit(): centralised training with learned hyperparameters in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedpart.centralised import Training
from fedpart.data.dataset import Dataset
from fedpart.registry import nearest
from fedpart.reports import TrainingError, TrainingReport
from fedpart.settings import TrainingSettings
from fedpart.state import Result
from fedpart.task import Task

__all__ = ["Training", "TrainingError", "TrainingReport", "TrainingSettings", "fit"]


def fit(
    task: Task,
    dataset: Dataset | tuple[Tensor, Tensor] | Sequence[Dataset],
    *,
    validation: Dataset | tuple[Tensor, Tensor] | None = None,
    evaluate_every: int = 100,
    on_report: Callable[[TrainingReport], None] | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    **settings: Any,
) -> Result[TrainingReport]:
    """Train ``task`` on data in one place, with its hyperparameters, in one run.

    Args:
        task: what is learned.
        dataset: a :class:`Dataset` or ``(inputs, targets)``, divided at random into chunks; or a list of C
            data sets, the chunks themselves.
        validation: held-out data for ``val_accuracy`` and ``val_nll``; nothing is trained on it.
        evaluate_every: iterations between reports.
        on_report: called with each report.
        checkpoint: a file that is replaced atomically at every report.
        resume: continue from ``checkpoint`` if it exists; the final weights are bit-identical to those of an
            undisturbed run.
        **settings: of :class:`~fedpart.settings.TrainingSettings`, e.g. ``iterations=2000``,
            ``chunks=(0.8, 0.1, 0.1)``, ``optimiser=AdamSettings(1e-3)``.

    Raises:
        ValueError: settings, data or checkpoint do not fit; the message says what to change.
        TrainingError: the loss is not finite, or the method has diverged.
    """
    if evaluate_every < 1:
        raise ValueError(f"evaluate_every is a number of iterations, at least 1, got {evaluate_every}.")
    known = [field.name for field in dataclasses.fields(TrainingSettings)]
    for name in settings:
        if name not in known:
            raise ValueError(f"There is no setting {name!r}: {nearest(name, known)}")
    training = Training(task, _data(dataset), TrainingSettings(**settings))
    held_out = None if validation is None else _data(validation)
    path, metrics = training.resume(checkpoint, resume), []

    def report(found: TrainingReport) -> None:
        if isinstance(held_out, Dataset):
            scores = training.evaluate(held_out)
            found.val_accuracy, found.val_nll = scores.get("accuracy"), scores["nll"]
        metrics.append(found)
        if path is not None:
            training.save(path)
        if on_report is not None:
            on_report(found)

    training.run(evaluate_every, report)
    return Result(training, metrics)


def _data(given: Any) -> Any:
    """``(inputs, targets)`` as a data set; a data set, or a list of them, as it is."""
    if isinstance(given, tuple) and given and isinstance(given[0], Tensor):
        return Dataset(*given)
    return given
