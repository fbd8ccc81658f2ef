"""Scores: a method's numbers over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulations.results.curves import Run
from simulations.results.estimate import Estimate
from simulations.results.psi_parts import PsiParts

SLACK = 1.001  # times the least upload is equal to it still: the few numbers of psi cost no evaluation


@dataclass(frozen=True)
class MethodScores:
    """One row: a method over its seeds.

    Attributes:
        method, seeds: what was run.
        validation: mean of the last ten evaluations of the comparison's metric, a fraction or nats.
        equal_upload: the same when the run had sent no more than the method that sends least at the same
            seed (but for a thousandth), all on the same validation data; None while a method's run at one of
            the seeds is missing.
        test: after the last round, in the same unit.
        clients, clients_worst: means of the last ten evaluations by the clients, in the same unit, over their
            examples and over the worst tenth of them.
        lml: L_ML per example, nats, mean of the last ten rounds that have it.
        held_out: share of the clients' examples that they never train on, because the method scores by them.
        upload_ratio: upload as a fraction of FedAvg's at the same seed, or if that was not run, of the full
            models that it would have sent.
        upload_bytes, download_bytes: of all clients in a whole run.
        seconds: of a run.
        runs_at_a_time: how many runs shared the machine at most while these seconds were measured.
        validation_examples, test_examples: that were scored; None in folders of earlier versions.
        psi: learned hyperparameters after the last round, in physical units, by name.
        chosen: those that were chosen from a grid, each seed's by itself: their mean need not be in it.
    """

    method: str
    seeds: list[int]
    validation: Estimate | None
    equal_upload: Estimate | None
    test: Estimate | None
    clients: Estimate | None
    clients_worst: Estimate | None
    lml: Estimate | None
    held_out: Estimate | None
    upload_ratio: Estimate | None
    upload_bytes: Estimate | None
    download_bytes: Estimate | None
    seconds: Estimate | None
    runs_at_a_time: int
    validation_examples: int | None
    test_examples: int | None
    psi: dict[str, Estimate]
    chosen: dict[str, list[float]]

    @property
    def star(self) -> str:
        """What marks times that were measured while several runs shared the machine."""
        return "*" if self.runs_at_a_time > 1 else ""

    @classmethod
    def of(
        cls, method: str, runs: Sequence[Run], metric: str, fedavg: Sequence[Run], least: Mapping[int, float]
    ) -> MethodScores:
        """Summarise a method's finished runs, one per seed.

        Args:
            metric: ``val_accuracy`` or ``val_nll``.
            fedavg: FedAvg's runs, to compare the upload with.
            least: see :func:`least_upload`.
        """
        own = metric.replace("val_", "client_")
        baseline = {run.summary["seed"]: run.total("upload_bytes") for run in fedavg}
        ratios = [
            run.total("upload_bytes") / baseline[run.summary["seed"]]
            if run.summary["seed"] in baseline
            else run.summary["upload_ratio"]
            for run in runs
        ]
        final = [{name: values[-1] for name, values in run.physical().items()} for run in runs]
        learned = {name for run in runs for name in run.learned()}
        names = list(final[0]) if final else []
        parts = PsiParts.of(names)
        grid = parts.rates if parts.probabilities else []  # a distribution over it stands beside, as FedEx's
        names = [name for name in names if name in learned and name not in grid]
        psi = {name: Estimate.of(values[name] for values in final) for name in names}
        return cls(
            method=method,
            seeds=[run.summary["seed"] for run in runs],
            validation=Estimate.of(run.last10(metric) for run in runs),
            equal_upload=Estimate.of(_within(run, metric, least) for run in runs),
            test=Estimate.of(run.summary.get(metric.replace("val_", "test_")) for run in runs),
            clients=Estimate.of(run.last10(own) for run in runs),
            clients_worst=Estimate.of(run.last10(f"{own}_worst_decile") for run in runs),
            lml=Estimate.of(run.summary.get("lml_last10") for run in runs),
            held_out=Estimate.of(run.summary.get("held_out_share") for run in runs),
            upload_ratio=Estimate.of(ratios),
            upload_bytes=Estimate.of(run.total("upload_bytes") for run in runs),
            download_bytes=Estimate.of(run.total("download_bytes") for run in runs),
            seconds=Estimate.of(run.summary["seconds"] for run in runs),
            runs_at_a_time=max((run.summary.get("runs_at_a_time", 1) for run in runs), default=1),
            validation_examples=next((run.summary.get("validation_examples") for run in runs), None),
            test_examples=next((run.summary.get("test_examples") for run in runs), None),
            psi={name: score for name, score in psi.items() if score is not None},
            chosen={name: [float(values[name]) for values in final] for name in grid},
        )


def least_upload(runs: Mapping[str, Sequence[Run]]) -> dict[int, float]:
    """Bytes that the method sent which sent least, by seed; of the seeds that all methods have finished.

    Rounds that are evaluated on other validation data do not count, see :meth:`Run.alike`.
    """
    found: dict[int, list[float]] = {}
    for run in (run for own in runs.values() for run in own):
        found.setdefault(run.summary["seed"], []).append(run.traffic("upload")[run.alike() - 1])
    return {seed: min(sent) for seed, sent in found.items() if len(sent) == len(runs)}


def _within(run: Run, metric: str, least: Mapping[int, float]) -> float | None:
    seed = run.summary["seed"]
    return run.last10(metric, SLACK * least[seed]) if seed in least else None
