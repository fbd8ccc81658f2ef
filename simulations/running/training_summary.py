"""The summary of finished centralised training: what its ``summary.json`` holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpart import Dataset, Training
from fedpart.randomness.streams import generator
from simulations.building.experiment import TrainingExperiment
from simulations.running.summary import git_commit, versions


def summarise_training(
    experiment: TrainingExperiment, training: Training, lines: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """What finished training amounts to.

    Args:
        experiment: what was run.
        training: its final state; with ``keep_best`` the one with the largest evidence.
        lines: every report's line of ``metrics.jsonl``.

    Returns:
        ``method, seed, data_seed, iterations``; ``lml`` (the evidence of the final state, nats summed over
        examples, None without one), ``lml_iteration`` (where it was) and ``evidence`` (which estimate it is,
        ``lml`` or ``laplace``); ``train_``, ``val_`` and ``test_accuracy``
        (fractions, None without classes or data) and ``_nll`` (nats per example) of the full network, where
        those on ``train`` are of the examples that its weights were trained on. ``subnetworks``: for k = 1..C
        how many ``examples`` its weights were trained on, its scores on these (``train``), on the ``next``
        chunk (which they have not seen; None if there is none) and on ``test``; ``stages``: the test scores
        at the end of each part of training, the last those of the final state; ``psi`` in physical units;
        ``seconds`` of all iterations; ``config_hash``, ``versions``, ``git_commit``.
    """
    config, best, last = experiment.config, training.best, lines[-1]
    reached = training.total if best is None else best.iteration
    subnetworks = [
        _subnetwork(training, k, _seen(training, k, reached), experiment.test)
        for k in range(1, training.partition.chunks + 1)
    ]
    full = subnetworks[-1]
    validation = _evaluate(training, experiment.validation)
    scores = {"train": full["train"], "val": validation, "test": full["test"]}
    stages = [
        {"name": line["stage"], "iteration": line["iteration"]}
        | {key: line[key] for key in ("test_accuracy", "test_nll")}
        for line in lines
        if "stage" in line
    ]
    name, end = training.stages[-1]
    stages.append({"name": name, "iteration": end, **_flat({"test": full["test"]})})
    return {
        "method": config.method,
        "seed": config.seed,
        "data_seed": config.data_seed,
        "iterations": config.iterations,
        "lml": last["lml"] if best is None else best.lml,
        "lml_iteration": last["iteration"] if best is None else best.iteration,
        "evidence": config.evidence,
        **_flat(scores),
        "subnetworks": subnetworks,
        "stages": stages,
        "psi": training.task.physical(training.psi),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "config_hash": config.hash(),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def _seen(training: Training, k: int, iteration: int) -> int:
    """The last of the chunks 1.. that subnetwork k's weights were trained on, as of ``iteration``."""
    if training.partition.chunks == len(training.shares):
        return k
    steps = training.method.steps(
        training.schedule, iteration, generator(training.seed, "iteration", iteration)
    )
    return max((step.last for step in steps if step.job.partition is not None), default=k)


def _subnetwork(training: Training, k: int, seen: int, test: Dataset) -> dict[str, Any]:
    data = training.examples(1, seen)
    unseen = None if seen == len(training.shares) else training.examples(seen + 1, seen + 1)
    return {
        "k": k,
        "examples": len(data),
        "train": training.evaluate(data, k),
        "next": None if unseen is None else training.evaluate(unseen, k),
        "test": _evaluate(training, test, k),
    }


def _evaluate(training: Training, dataset: Dataset, k: int | None = None) -> dict[str, float]:
    return training.evaluate(dataset, k) if len(dataset) else {}


def _flat(scores: dict[str, dict[str, float]]) -> dict[str, float | None]:
    return {f"{part}_{key}": found.get(key) for part, found in scores.items() for key in ("accuracy", "nll")}
