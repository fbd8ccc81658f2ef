"""The summary of a finished run: what ``summary.json`` holds."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from fedpart import Dataset, Federation, Protocol, Training
from fedpart.centralised.scores import of_corrupted, of_ensemble
from fedpart.data import has_labels
from fedpart.engines.batches import count_learned
from fedpart.federated import cohorts
from fedpart.federated.evaluation import by_architecture, ensemble
from fedpart.randomness.streams import generator
from fedpart.training.result import remarks_on
from fedpart.updates.stages import Privacy, UsualBounds
from simulations.building.experiment import Experiment, TrainingExperiment
from simulations.building.reading import described
from simulations.config.load import Config
from simulations.folders.data_files import git_commit, versions
from simulations.results.courses import courses
from simulations.results.curves import recent, seconds_to_accuracy
from simulations.results.verdicts import guesses
from simulations.running.ends import ends

Lines = Sequence[dict[str, Any]]  # of a run's metrics.jsonl


def summarise(
    experiment: Experiment | TrainingExperiment, state: Federation | Training, lines: Lines,
    workers: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What a finished run amounts to; ``workers``: processes that ran its clients, None: not known."""
    config = experiment.config
    if isinstance(experiment, Experiment):
        more, data = _federated(experiment, state, lines) | {"workers": workers}, experiment.shards[0]
        validation = experiment.validation_of(config.rounds)
    else:
        more, data = _centralised(experiment, state, lines), experiment.train
        validation = experiment.validation
    answers = state.answers(experiment.test.inputs)[0] if "test_rmse" in more else None
    guess = guesses(experiment.shards, experiment.test, answers)
    psi, before = (state.task.physical(values) for values in (state.psi, state.task.psi_space.initial()))
    return {
        "method": config.method,
        "seed": config.seed,
        "data_seed": config.data_seed,
        **more,
        "psi": psi,
        "psi_initial": before,
        "psi_learned": [name for name, value in psi.items() if value != before.get(name)],
        "psi_course": courses(lines, before),
        **({"psi_remarks": remarks} if (remarks := remarks_on(state)) else {}),
        **({"guess": guess} if guess else {}),
        "num_classes": experiment.num_classes,
        **({"classes": experiment.classes} if experiment.classes else {}),
        **({"client_names": names} if (names := getattr(experiment, "client_names", ())) else {}),
        "inputs": described(data.inputs),
        **({"preprocessing": made.state} if (made := experiment.preprocessing) is not None else {}),
        "validation_examples": len(validation),
        "test_examples": len(experiment.test),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "config_hash": config.hash(),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def _federated(experiment: Experiment, federation: Federation, lines: Lines) -> dict[str, Any]:
    config, protocol = experiment.config, federation.protocol
    evaluations = [line["val_accuracy"] for line in lines if line.get("val_accuracy") is not None]
    last = recent(evaluations)
    rates = None if federation.race is None else federation.race.rates
    alone = [line for line in lines if line.get("factors") == rates]  # of the candidate whose rates are left
    unseen = recent([line["lml"] for line in alone if line.get("lml") is not None])
    samples = config.evaluation_samples
    looked_at = len(experiment.test) > 0 and protocol.settings.scored
    test = tested(federation, experiment.test, measured(config), samples) if looked_at else {}
    by_clients = [line for line in lines if line.get("client_nll") is not None]
    upload = sum(line["upload_bytes"] for line in lines)
    sizes = [len(shard) for shard in experiment.shards]
    refused = sum((Counter(line.get("refused", {})) for line in lines), Counter[str]())
    parameters = protocol.task.counts
    model_bytes = parameters["trained"] * federation.w.element_size() + cohorts.UPLOAD_HEADER
    late = sum(skip["category"] == "late" for line in lines for skip in line["skipped"])
    replies = max(1, sum(len(line["cohort"]) for line in lines) - late)
    plans = (protocol.plan(client, round) for round, client in _answers(lines))
    of_psi = sum(any(job.psi for job in plan) for plan in plans)  # uploads with a psi gradient
    told = {
        "engine": config.engine,
        "execution": config.execution,
        "precision": config.precision,
        "channels_last": config.channels_last,
        "rounds": federation.round,
        "val_accuracy": last[-1] if last else None,
        "val_nll": next((nll for line in reversed(lines) if (nll := line.get("val_nll")) is not None), None),
        "val_accuracy_last10": sum(last) / len(last) if last else None,
        "val_evaluations_averaged": len(last),
        "test_accuracy": test.get("accuracy"),
        "test_nll": test.get("nll"),
        "lml_last10": sum(unseen) / len(unseen) if unseen else None,
        "upload_ratio": upload / (model_bytes * replies),
        "upload_ratio_expected": cohorts.expected_upload_ratio(protocol),
        "upload_bytes": upload,
        "upload_bytes_psi": of_psi * protocol.task.psi_space.size * federation.psi.element_size(),
        "download_bytes": sum(line["download_bytes"] for line in lines),
        "held_out_share": sum(n - count_learned(protocol, n) for n in sizes) / sum(sizes),
        "skipped_clients": sum(len(line["skipped"]) for line in lines),
        "refused": dict(sorted(refused.items())),
        "rounds_without_step": sum(not line.get("stepped", True) for line in lines),
    }
    told |= {"parameters": parameters, **limits(federation, lines)}
    if config.caps is not None:
        told["caps"] = {str(cap): share for cap, share in config.caps.items()}
        by_cap = sorted(_bytes_by(protocol, lines, protocol.cap).items())
        told["by_cap"] = [{"cap": cap, **row} for cap, row in by_cap]
    if config.architectures is not None:
        told |= _by_architecture(federation, experiment.test if looked_at else None, lines, samples)
    if parameters["frozen"]:
        whole = model_bytes + sum(t.numel() * t.element_size() for t in protocol.task.frozen.values())
        told["upload_ratio_whole"] = upload / (whole * replies)
    told |= more_of_test(test) | ends(experiment, federation, lines)
    if by_clients:
        told |= {key: value for key, value in by_clients[-1].items() if key.startswith("client_")}
        told["evaluation_bytes"] = sum(line["evaluation_bytes"] for line in by_clients)
    if all("examples" in line for line in lines):
        told["examples"] = sum(line["examples"] for line in lines)
        told["client_seconds"] = round(sum(line["client_seconds"] for line in lines), 3)
    if federation.pace is not None and federation.pace.fleet is not None:
        told["simulated_seconds"] = federation.pace.now
        told["simulated_seconds_to"] = seconds_to_accuracy(lines)
        counts = Counter(protocol.chunk(client) for _, client in _answers(lines))
        chunks = range(1, len(protocol.chunks) + 1)
        told["answers_chunks"] = [counts[k] / max(1, counts.total()) for k in chunks]
    if (privacy := federation.stage(Privacy)) is not None:
        told["epsilon"] = privacy.epsilon()
        told["delta"] = protocol.settings.privacy.delta
        told["epsilon_simulated"] = privacy.repeats
    return told


def _by_architecture(
    federation: Federation, test: Dataset | None, lines: Lines, samples: int | None
) -> dict[str, Any]:
    rows = by_architecture(federation, test, samples)
    of_bytes = _bytes_by(federation.protocol, lines, federation.protocol.architectures.__getitem__)
    told: dict[str, Any] = {"by_architecture": [row | of_bytes[index] for index, row in enumerate(rows)]}
    if test is not None and federation.task.likelihood_name == "classification" and has_labels(test):
        told["ensemble"] = ensemble(federation, test, samples)
    return told


def _bytes_by(protocol: Protocol, lines: Lines, kind: Callable[[int], int]) -> dict[int, dict[str, int]]:
    """How many ``clients`` of each kind there are, also late ones, and their bytes as predicted."""
    none = {"clients": 0, "upload_bytes": 0, "download_bytes": 0}
    kinds: dict[int, dict[str, int]] = defaultdict(none.copy)
    late = {client for line in lines for client in line["cohort"]} - set(range(protocol.settings.clients))
    for client in (*range(protocol.settings.clients), *late):
        kinds[kind(client)]["clients"] += 1
    for client in (client for line in lines for client in line["cohort"]):
        state = cohorts.state_bytes(protocol, client)
        kinds[kind(client)]["download_bytes"] += state + cohorts.DOWNLOAD_HEADER
    for round, client in _answers(lines):
        plan = protocol.plan(client, round)
        kinds[kind(client)]["upload_bytes"] += cohorts.upload_bytes(protocol, client, plan)
    return kinds


def _answers(lines: Lines) -> list[tuple[int, int]]:
    """Round and client of every update that was taken."""
    absent = [{skip["client"] for skip in line["skipped"]} for line in lines]
    return [
        (line["round"], client)
        for line, missing in zip(lines, absent, strict=True)
        for client in line["cohort"]
        if client not in missing
    ]


def _centralised(experiment: TrainingExperiment, training: Training, lines: Lines) -> dict[str, Any]:
    config, best = experiment.config, training.best
    last = lines[-1] if lines else {"lml": None, "iteration": training.total}  # they were lost
    reached = training.total if best is None else best.iteration
    subnetworks = [
        _subnetwork(training, k, _seen(training, k, reached), experiment.test)
        for k in range(1, training.partition.chunks + 1)
    ]
    full = subnetworks[-1]
    wanted = measured(config) and len(experiment.test)
    measures = tested(training, experiment.test, measures=True) if wanted else {}
    validation = scores_of(training, experiment.validation)
    of_stage = ("iteration", "test_accuracy", "test_nll")
    ended = [line for line in lines if "stage" in line]
    stages = [{"name": line["stage"]} | {key: line[key] for key in of_stage} for line in ended]
    beyond: dict[str, Any] = {}
    if len(experiment.test) and training.task.likelihood_name == "ensemble":
        beyond["ensemble"] = of_ensemble(training, experiment.test)
    if len(experiment.test) and config.corrupted:
        beyond["corrupted"] = of_corrupted(training, experiment.test, training.seed)
    name, end = training.stages[-1]
    stages.append({"name": name, "iteration": end, **flat({"test": full["test"]})})
    return {
        "iterations": config.iterations,
        "lml": last["lml"] if best is None else best.lml,
        "lml_iteration": last["iteration"] if best is None else best.iteration,
        "evidence": config.judged_by,
        **flat({"train": full["train"], "val": validation, "test": full["test"]}),
        **more_of_test(measures),
        "subnetworks": subnetworks,
        "stages": stages,
        **beyond,
    }


def _seen(training: Training, k: int, iteration: int) -> int:
    """The last of the chunks 1.. that subnetwork k's weights were trained on, as of ``iteration``."""
    if training.partition.chunks == len(training.shares):
        return k
    rng = generator(training.seed, "iteration", iteration)
    steps = training.method.steps(training.schedule, iteration, rng)
    return max((step.last for step in steps if step.job.partition is not None), default=k)


def _subnetwork(training: Training, k: int, seen: int, test: Dataset) -> dict[str, Any]:
    data = training.examples(1, seen)
    unseen = None if seen == len(training.shares) else training.examples(seen + 1, seen + 1)
    return {
        "k": k,
        "examples": len(data),
        "train": training.evaluate(data, k),
        "next": None if unseen is None else training.evaluate(unseen, k),
        "test": scores_of(training, test, k),
    }


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
    return {f"{part}_{key}": each.get(key) for part, each in scores.items() for key in ("accuracy", "nll")}


def limits(federation: Federation, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What there is of ``clip`` with bounds and whom it has shortened, of ``psi_alarms`` and ``psi_held``."""
    told: dict[str, Any] = {}
    clip = federation.protocol.settings.clip
    if clip is not None:
        told["clip"] = asdict(clip)
        following = (federation.stage(UsualBounds), federation.stage(Privacy))
        for bounds in (bounds for stage in following if stage and (bounds := stage.bounds())):
            psi, *cells = (None if bound.unit else bound.norm for bound in bounds)
            told["clip"]["bounds"] = {"psi": psi, "cells": cells}
        if clip.multiple is not None:
            clipped = Counter(str(client) for line in lines for client in line.get("clipped", ()))
            told["clip"]["clipped"] = dict(sorted(clipped.items(), key=lambda entry: int(entry[0])))
    alarms = Counter(str(alarm["chunk"]) for line in lines for alarm in line.get("psi_alarms", ()))
    if alarms:
        told["psi_alarms"] = dict(sorted(alarms.items()))
    if held := federation.held():
        told["psi_held"] = held
    return told
