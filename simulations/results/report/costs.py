"""What a method costs: seconds, bytes, local steps, and FedHPO-B's estimate of its time on real devices."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from fedpart import Dataset, Protocol
from fedpart.engines.batches import count_batches
from simulations.building.task import build_task
from simulations.config.load import ExperimentConfig
from simulations.results.curves import Run
from simulations.results.report.data import Data
from simulations.results.report.folder import Found
from simulations.results.scores import BYTES, COUNT, SHARE, TIME, Estimate
from simulations.results.words import DASH

COST_HEAD = ["method", "held out\n[%]", "measured time", "upload", "of it\npsi", "download", "local steps"]
COST_HEAD += ["psi batches", "c [s]", "estimated time"]
UP, DOWN = 0.25 * 2**20, 0.75 * 2**20  # bytes per second of a client, as FedHPO-B's configuration has them


def cost_rows(found: Found, data: Data | str) -> list[list[str]]:
    """Methods in the table of costs, as COST_HEAD names the texts; ``data``: see :func:`.read_data`."""
    rows = []
    for row in found.comparison.rows:
        runs = found.finished[row.method]
        clients, steps = [client_seconds(run) for run in runs], _steps(runs, data)
        estimated = [estimated_seconds(run.metrics, c) for run, c in zip(runs, clients, strict=True)]
        texts = (
            SHARE.shown(row["held_out"]),
            TIME.shown(row["seconds"]) + row.star,
            BYTES.shown(row["upload_bytes"]),
            BYTES.shown(Estimate.of(run.summary.get("upload_bytes_psi") for run in runs)),
            BYTES.shown(row["download_bytes"]),
            *(COUNT.shown(Estimate.of(run[i] for run in steps)) for i in (0, 1)),
            DASH if (each := Estimate.of(clients)) is None else f"{each.mean:.3g}",
            TIME.shown(Estimate.of(estimated)),
        )
        rows.append([row.method, *texts])
    return rows


def _steps(runs: Sequence[Run], data: Data | str) -> list[tuple[int | None, int | None]]:
    """:func:`count_steps` of each run; None if data or model cannot be had here."""
    try:
        if not isinstance(data, str):
            classes = data.splits.num_classes
            return [count_steps(run.config, run.metrics, data.shards, classes) for run in runs]
    except (ValueError, TypeError, OSError, ImportError):
        pass
    return [(None, None)] * len(runs)


def estimated_seconds(lines: Sequence[dict[str, Any]], client: float | None) -> float | None:
    """FedHPO-B's estimate (Wang et al. 2023, cross-device) of how long the rounds take on real devices.

    A round of M clients takes S_up / B_up + S_down / B_down + c H_M: the M clients' times are exponential
    with mean c, the slowest of them takes c H_M = c (1 + 1/2 + ... + 1/M) in expectation, and the server
    takes none. FedHPO-B's S is the model; here it is what the round's clients sent and received on average.

    ``lines`` are those of metrics.jsonl, ``client`` is c in seconds (:func:`client_seconds`); None if c is.
    """
    if client is None:
        return None
    total = 0.0
    for line in lines:
        clients = max(1, len(line["cohort"]))
        sent, received = line["upload_bytes"] / clients, line["download_bytes"] / clients
        slowest = client * sum(1 / m for m in range(1, clients + 1))
        total += sent / UP + received / DOWN + slowest
    return total


def client_seconds(run: Run) -> float | None:
    """c: seconds of a client in a round, as measured: the median round without evaluation, over its clients.

    With several worker processes, times how many of them a cohort occupies; where all rounds were evaluated,
    of those. None if the number of processes is not known, as where clients are on other machines.
    """
    workers = run.summary.get("workers")
    if workers is None:
        return None
    plain = [line for line in run.metrics if "val_nll" not in line] or run.metrics
    cohorts = [(line["seconds"], max(1, len(line["cohort"]))) for line in plain]
    return median(seconds * min(workers, clients) / clients for seconds, clients in cohorts)


def count_steps(
    config: ExperimentConfig, lines: Sequence[dict[str, Any]], shards: Sequence[Dataset], num_classes: int
) -> tuple[int, int]:
    """Local SGD steps of all clients in the rounds of a run, and batches of psi gradients taken alone.

    ``lines`` are those of its metrics.jsonl, ``shards`` the clients' data. Settings of a client's own follow
    from the psi with which a round begins.
    """
    task = build_task(config, num_classes, shards[0].input_shape)
    protocol = Protocol(task, config.settings(), identity=config.identity())
    found, psi = [0, 0], protocol.task.psi_space.initial()
    named = protocol.task.psi_tensors(psi)
    for line in lines:
        for client in line["cohort"]:
            view = protocol.view(client, line["round"], psi)
            local, examples = protocol.method.local_settings(view), len(shards[client])
            for job in protocol.method.plan(view):
                found[job.partition is None] += count_batches(protocol, local, examples, job)
        if protocol.method.tells_clients_apart:
            for name, values in line["psi"]["raw"].items():
                if not isinstance(values, dict):  # weights, told by their norm, decide no settings
                    named[name].copy_(torch.tensor(values).view_as(named[name]))
    return found[0], found[1]
