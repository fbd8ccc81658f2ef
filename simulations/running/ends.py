"""Ends: what the summary of a federated run says of how it went to its end."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedpart import Federation
from fedpart.federated.best import fallen
from fedpart.federated.report import untaught
from simulations.building.experiment import Experiment


def ends(
    experiment: Experiment, federation: Federation, lines: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What there is of ``untaught``, ``lml_fallen`` and, with ``keep_best``, what was kept and its scores."""
    config, best = experiment.config, federation.best
    sentences = {
        "untaught": untaught(federation.protocol),
        "lml_fallen": fallen([line.get("lml") for line in lines], best is not None),
    }
    told: dict[str, Any] = {name: sentence for name, sentence in sentences.items() if sentence}
    if best is None or best.round is None:
        return told
    told |= {"kept_round": best.round, "kept_lml": best.lml}
    validation = experiment.validation_of(config.rounds)
    if len(validation) and config.evaluation != "none":  # the lines have those of later rounds
        told |= federation.validated(validation, config.evaluation_samples)
    return told
