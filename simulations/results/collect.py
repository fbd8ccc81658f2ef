"""From the runs of a comparison to its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from simulations.config.load import ExperimentConfig
from simulations.config.published import Published
from simulations.results.comparison import Comparison, Failure
from simulations.results.curves import Run, metric
from simulations.results.scores import MethodScores, least_upload


def collect(
    config: ExperimentConfig,
    seeds: Iterable[int],
    runs: Mapping[str, Sequence[Run]],
    failures: Sequence[Failure] = (),
) -> Comparison:
    """The comparison of a configuration's runs: the finished ones by method, ``seeds`` those of all."""
    measure, fedavg, least = metric(runs), runs.get("fedavg", ()), least_upload(runs)
    return Comparison(
        rows=[MethodScores.of(method, own, measure, fedavg, least) for method, own in runs.items()],
        failures=list(failures),
        notes=_unequal_cohorts(runs),
        metric=measure,
        rounds=config.rounds,
        seeds=sorted(set(seeds)),
        config={key: value for key, value in config.resolved().items() if key not in ("method", "seed")},
        published=None if config.published is None else Published.of(config.published),
    )


def _unequal_cohorts(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """A sentence per seed whose methods did not meet the same clients, as where nodes were missing."""
    cohorts: dict[int, dict[str, list[list[int]]]] = {}
    for method, own in runs.items():
        for run in own:
            cohorts.setdefault(run.summary["seed"], {})[method] = [line["cohort"] for line in run.metrics]
    notes = []
    for seed, by_method in cohorts.items():
        for round, drawn in enumerate(zip(*by_method.values(), strict=False), start=1):
            if any(cohort != drawn[0] for cohort in drawn):
                notes.append(f"Seed {seed}: the methods' cohorts differ, first in round {round}.")
                break
    return notes
