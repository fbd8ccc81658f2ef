"""Parts of a summary: scores on test data, and what kept single clients from much."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedpart import Dataset, Federation, Training
from fedpart.updates.stages import Privacy, UsualBounds
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


def limits(federation: Federation, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a federated run with these lines of metrics, what there is of

    ``clip``: the settings; where they are adaptive, also ``bounds``, the last ones of ``psi`` and ``cells``
    (null: none, or not known yet), and with a ``multiple`` ``clipped``: in how many rounds each client's
    update was longer than its bound. ``psi_alarms``: by chunk, in how many rounds its psi gradients were of
    another size than usual. ``psi_held``: hyperparameters that have ended at the bound of what they can mean.
    """
    found: dict[str, Any] = {}
    clip = federation.protocol.settings.clip
    if clip is not None:
        found["clip"] = asdict(clip)
        following = (federation.stage(UsualBounds), federation.stage(Privacy))
        for bounds in (bounds for stage in following if stage and (bounds := stage.bounds())):
            psi, *cells = (None if bound.unit else bound.norm for bound in bounds)
            found["clip"]["bounds"] = {"psi": psi, "cells": cells}
        if clip.multiple is not None:
            clipped = Counter(str(client) for line in lines for client in line.get("clipped", ()))
            by_client = dict(sorted(clipped.items(), key=lambda one: int(one[0])))
            found["clip"]["clipped"] = by_client
    alarms = Counter(str(alarm["chunk"]) for line in lines for alarm in line.get("psi_alarms", ()))
    if alarms:
        found["psi_alarms"] = dict(sorted(alarms.items()))
    if held := federation.held():
        found["psi_held"] = held
    return found
