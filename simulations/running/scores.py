"""Scores of a state on a data set, as a summary has them."""

from typing import Any

from fedpart import Dataset, Federation, Training
from simulations.config.load import Config


def scores_of(training: Training, dataset: Dataset, k: int | None = None) -> dict[str, float]:
    """Of subnetwork k, or of the network; nothing where there are no examples."""
    return training.evaluate(dataset, k) if len(dataset) else {}


def tested(
    state: Federation | Training, test: Dataset, measures: bool, samples: int | None = None
) -> dict[str, Any]:
    """The scores on test data; without the measures, if they fail: ``measures_missing`` then says why."""
    try:
        return state.evaluate(test, samples=samples, measures=measures)
    except ValueError as error:
        if not measures:
            raise
        return state.evaluate(test, samples=samples) | {"measures_missing": str(error)}


def measured(config: Config) -> bool:
    """Whether the likelihood's measures are asked for; a regression's error always is, in its own units."""
    return config.measures or config.likelihood in ("gaussian", "poisson")


def more_of_test(test: dict[str, Any]) -> dict[str, Any]:
    """What there is besides accuracy and loss."""
    return {f"test_{name}": value for name, value in test.items() if name not in ("accuracy", "nll")}


def flat(scores: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """``{part}_accuracy`` and ``{part}_nll`` of each part."""
    return {f"{part}_{key}": found.get(key) for part, found in scores.items() for key in ("accuracy", "nll")}
