"""Ends: what the summary of a federated run says of how it went to its end."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedpart import Federation
from fedpart.federated.best import fallen
from fedpart.federated.report import untaught
from fedpart.updates.stages.personal import parted
from simulations.building.experiment import Experiment

Lines = Sequence[Mapping[str, Any]]  # of a run's metrics.jsonl


def ends(experiment: Experiment, federation: Federation, lines: Lines) -> dict[str, Any]:
    """What there is of ``untaught``, ``parted``, ``lml_fallen``, ``rates``, and of ``keep_best``."""
    config, best = experiment.config, federation.best
    told: dict[str, Any] = {"untaught": untaught(federation.protocol), "parted": parted(federation.protocol)}
    alone = ((line["round"], line.get("lml")) for line in lines if line.get("candidates", 1) == 1)
    told["lml_fallen"] = fallen(alone, best is not None or federation.race is not None)
    if federation.race is not None:
        told["rates"] = federation.race.told()
    if best is not None and best.round is None:
        told["kept_none"] = "those of the last round, for fewer than ten have an L_ML"
    elif best is not None:
        told |= {"kept_round": best.round, "kept_lml": best.lml}
        validation = experiment.validation_of(config.rounds)
        # the lines have scores of later rounds
        scored = len(validation) and experiment.protocol.settings.scored
        told |= federation.validated(validation, config.evaluation_samples) if scored else {}
    return {name: text for name, text in told.items() if text != ""}
