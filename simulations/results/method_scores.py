"""MethodScores: a method's numbers over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulations.results.curves import Run
from simulations.results.psi_parts import PsiParts
from simulations.results.scores import Estimate

EXAMPLES = ("validation_examples", "test_examples")
AT_BYTES = "@bytes"  # behind a metric's name, for a table: see :func:`at_equal_bytes`
SLACK = 1.001  # times the least upload is equal to it still: the few numbers of psi cost no evaluation


@dataclass(frozen=True)
class MethodScores:
    """One row: a method over its seeds; scores are fractions, nats, bytes of a whole run, seconds."""

    method: str
    seeds: list[int]
    scores: dict[str, Estimate | None]
    runs_at_a_time: int  # at most, while the seconds were measured
    validation_examples: int | None
    test_examples: int | None
    psi: dict[str, Estimate]
    chosen: dict[str, list[float]]  # psi from a grid, by seed: a mean need not be in it

    def __getitem__(self, name: str) -> Estimate | None:
        return self.scores[name]

    @property
    def star(self) -> str:
        """What marks times that were measured while several runs shared the machine."""
        return "*" if self.runs_at_a_time > 1 else ""

    @classmethod
    def of(
        cls, method: str, runs: Sequence[Run], key: str, fedavg: Sequence[Run], least: Mapping[int, float]
    ) -> MethodScores:
        """Summarise finished runs, one per seed: by the metric ``key``, and :func:`least_upload`'s bytes."""
        clients = key.replace("val_", "client_")
        sent = {run.config.seed: run.total("upload_bytes") for run in fedavg}
        scores = {
            "validation": lambda run: run.last10(key),
            "equal_upload": lambda run: (
                run.last10(key, SLACK * least[run.config.seed]) if run.config.seed in least else None
            ),
            "test": lambda run: run.summary.get(key.replace("val_", "test_")),
            "clients": lambda run: run.last10(clients),
            "clients_worst": lambda run: run.last10(f"{clients}_worst_decile"),
            "lml": lambda run: run.summary.get("lml_last10"),
            "held_out": lambda run: run.summary.get("held_out_share"),
            "upload_ratio": lambda run: (
                run.total("upload_bytes") / sent[run.config.seed]
                if run.config.seed in sent
                else run.summary["upload_ratio"]
            ),
            "upload_bytes": lambda run: run.total("upload_bytes"),
            "download_bytes": lambda run: run.total("download_bytes"),
            "seconds": lambda run: run.summary["seconds"],
        }
        final = [{name: values[-1] for name, values in run.physical().items()} for run in runs]
        learned, names = {name for run in runs for name in run.learned()}, list(final[0]) if final else []
        parts = PsiParts.of(names)
        grid = parts.rates if parts.probabilities else []  # a distribution over it stands beside, as FedEx's
        shown = [name for name in names if name in learned and name not in grid]
        estimates = {name: Estimate.of(values[name] for values in final) for name in shown}
        return cls(
            method=method,
            seeds=[run.config.seed for run in runs],
            scores={name: Estimate.of(map(score, runs)) for name, score in scores.items()},
            runs_at_a_time=max((run.summary.get("runs_at_a_time", 1) for run in runs), default=1),
            **{key: next((run.summary.get(key) for run in runs), None) for key in EXAMPLES},
            psi={name: score for name, score in estimates.items() if score is not None},
            chosen={name: [float(values[name]) for values in final] for name in grid},
        )


def least_upload(runs: Mapping[str, Sequence[Run]]) -> dict[int, float]:
    """Bytes that the method sent which sent least, by seed; of the seeds that all methods have finished."""
    return _least([run for group in runs.values() for run in group], "upload", len(runs))


def _least(runs: Sequence[Run], of: str, rows: int) -> dict[int, float]:
    """The fewest bytes ``of`` an axis, by seed; of the seeds that so many runs have finished."""
    moved: dict[int, list[float]] = {}
    for run in runs:
        moved.setdefault(run.config.seed, []).append(run.along(of)[run.alike() - 1])
    return {seed: min(each) for seed, each in moved.items() if len(each) == rows}


def at_equal_bytes(runs: Sequence[Run], key: str, rows: int) -> list[float | None]:
    """Of each run, the mean of its last evaluations within all the bytes, up and down, of the cheapest of its
    seed; None where not all ``rows`` have finished the seed."""
    least, seeds = _least(runs, "bytes", rows), [(run, run.config.seed) for run in runs]
    return [run.last10(key, SLACK * least[seed], "bytes") if seed in least else None for run, seed in seeds]
