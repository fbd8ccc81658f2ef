"""The summary of a finished run: what ``summary.json`` holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedpart import Federation, Protocol
from fedpart.engines.batches import count_held_out
from simulations.building.experiment import Experiment
from simulations.folders.versions import git_commit, versions
from simulations.results.curves import LAST


def summarise(
    experiment: Experiment,
    federation: Federation,
    lines: Sequence[dict[str, Any]],
    workers: int | None,
) -> dict[str, Any]:
    """What a finished run amounts to.

    Args:
        experiment: what was run.
        federation: its final state.
        lines: every round's line of ``metrics.jsonl``.
        workers: processes that ran the clients at last; None: not known.

    Returns:
        ``method, engine, workers``,
        ``execution, precision, channels_last, seed, rounds``; ``val_accuracy`` (last round) and
        ``val_accuracy_last10`` (mean of the last 10 evaluations, or of ``val_evaluations_averaged`` if there
        are fewer); ``test_accuracy``;
        accuracies are fractions, None where there are no classes or no data. ``upload_ratio``: bytes sent
        over the bytes that FedAvg sends for the same cohorts (all of them the full model);
        ``upload_ratio_expected``: the same in expectation over clients; ``upload_bytes_psi``: the part of
        ``upload_bytes`` that psi's numbers take. ``held_out_share``: of the clients' examples, never trained
        on because the method scores by them. ``psi`` in physical units;
        ``refused``: how often each category of refusal occurred; ``rounds_without_step``; with privacy
        ``epsilon`` and ``delta``; ``seconds`` of all rounds; ``versions``; ``git_commit``.
    """
    config, protocol = experiment.config, federation.protocol
    evaluations = [line["val_accuracy"] for line in lines if line.get("val_accuracy") is not None]
    last = evaluations[-LAST:]
    samples = config.evaluation_samples
    test = federation.evaluate(experiment.test, samples=samples) if len(experiment.test) else {}
    upload = sum(line["upload_bytes"] for line in lines)
    model_bytes = protocol.task.parameter_space(1).size * federation.w.element_size()
    return {
        "method": config.method,
        "engine": config.engine,
        "workers": workers,
        "execution": config.execution,
        "precision": config.precision,
        "channels_last": config.channels_last,
        "seed": config.seed,
        "data_seed": config.data_seed,
        "rounds": federation.round,
        "val_accuracy": last[-1] if last else None,
        "val_accuracy_last10": sum(last) / len(last) if last else None,
        "val_evaluations_averaged": len(last),
        "test_accuracy": test.get("accuracy"),
        "test_nll": test.get("nll"),
        "upload_ratio": upload / (model_bytes * max(1, sum(len(line["cohort"]) for line in lines))),
        "upload_ratio_expected": protocol.expected_upload_ratio,
        "upload_bytes": upload,
        "upload_bytes_psi": _psi_numbers(protocol, lines) * federation.psi.element_size(),
        "download_bytes": sum(line["download_bytes"] for line in lines),
        "held_out_share": _held_out_share(experiment),
        "psi": protocol.task.physical(federation.psi),
        "skipped_clients": sum(len(line["skipped"]) for line in lines),
        "refused": _refused(lines),
        "rounds_without_step": sum(not line.get("stepped", True) for line in lines),
        **_privacy(federation),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "config_hash": config.hash(),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def _psi_numbers(protocol: Protocol, lines: Sequence[dict[str, Any]]) -> int:
    """How many numbers clients have sent for psi."""
    count = 0
    for line in lines:
        absent = {skip["client"] for skip in line["skipped"]}
        present = (client for client in line["cohort"] if client not in absent)
        count += sum(any(job.psi for job in protocol.plan(client, line["round"])) for client in present)
    return count * protocol.task.psi_space.size


def _held_out_share(experiment: Experiment) -> float:
    sizes = [len(shard) for shard in experiment.shards]
    return sum(count_held_out(experiment.protocol.method.held_out, n) for n in sizes) / sum(sizes)


def _refused(lines: Sequence[dict[str, Any]]) -> dict[str, int]:
    counts = Counter[str]()
    for line in lines:
        counts.update(line.get("refused", {}))
    return dict(sorted(counts.items()))


def _privacy(federation: Federation) -> dict[str, float]:
    privacy = federation.protocol.settings.privacy
    if federation.privacy is None or privacy is None:
        return {}
    return {"epsilon": federation.privacy.epsilon(federation.round), "delta": privacy.delta}
