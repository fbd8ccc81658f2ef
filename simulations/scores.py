"""Scores: a method's numbers over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.curves import Run
from simulations.score import Score


@dataclass(frozen=True)
class MethodScores:
    """One row: a method over its seeds.

    Attributes:
        method, seeds: what was run.
        validation: mean of the last ten evaluations of the comparison's metric, a fraction or nats.
        test: after the last round, in the same unit.
        upload_ratio: upload as a fraction of FedAvg's at the same seed, or if that was not run, of the full
            models that it would have sent.
        upload_bytes, download_bytes: of all clients in a whole run.
        seconds: of a run.
        psi: learned hyperparameters after the last round, in physical units, by name.
    """

    method: str
    seeds: list[int]
    validation: Score | None
    test: Score | None
    upload_ratio: Score | None
    upload_bytes: Score | None
    download_bytes: Score | None
    seconds: Score | None
    psi: dict[str, Score]

    @classmethod
    def of(cls, method: str, runs: Sequence[Run], metric: str, fedavg: Sequence[Run] = ()) -> MethodScores:
        """Summarise a method's finished runs.

        Args:
            method: its name.
            runs: one per seed.
            metric: ``val_accuracy`` or ``val_nll``.
            fedavg: FedAvg's runs, to compare the upload with.
        """
        baseline = {run.summary["seed"]: run.total("upload_bytes") for run in fedavg}
        ratios = [
            run.total("upload_bytes") / baseline[run.summary["seed"]]
            if run.summary["seed"] in baseline
            else run.summary["upload_ratio"]
            for run in runs
        ]
        test = metric.replace("val_", "test_")
        final = [{name: values[-1] for name, values in run.physical().items()} for run in runs]
        learned = {name for run in runs for name in run.learned()}
        names = [name for name in (final[0] if final else ()) if name in learned]
        psi = {name: Score.of(values[name] for values in final) for name in names}
        return cls(
            method=method,
            seeds=[run.summary["seed"] for run in runs],
            validation=Score.of(run.last10(metric) for run in runs),
            test=Score.of(run.summary.get(test) for run in runs),
            upload_ratio=Score.of(ratios),
            upload_bytes=Score.of(run.total("upload_bytes") for run in runs),
            download_bytes=Score.of(run.total("download_bytes") for run in runs),
            seconds=Score.of(run.summary["seconds"] for run in runs),
            psi={name: score for name, score in psi.items() if score is not None},
        )
