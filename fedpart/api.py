"""federate(): a whole run in one call, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.data.given import Examples, as_dataset, is_examples
from fedpart.engines.local import LocalEngine
from fedpart.federated.federation import Federation, RoundReport
from fedpart.federated.protocol import Protocol
from fedpart.federated.settings import FederationSettings
from fedpart.loggers import logged
from fedpart.registry import nearest
from fedpart.task.task import Task
from fedpart.training.result import Result


def federate(
    task: Task,
    shards: Sequence[Examples],
    *,
    rounds: int = 100,
    validation: Examples | None = None,
    evaluate_every: int = 10,
    on_round: Callable[[RoundReport], None] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    workers: int = 1,
    execution: str = "loop",
    progress: bool = False,
    loggers: Sequence[Any] = (),
    **settings: Any,
) -> Result[RoundReport]:
    """Train ``task`` over clients, on this machine.

    Args:
        task: what is learned.
        shards: the clients' data, one :class:`Dataset` or ``(inputs, targets)`` each; client i holds
            ``shards[i]``. Anything with a length and an index will do: what is no list or tuple is read one
            client at a time, when it is in the cohort.
        rounds: to complete.
        validation: held-out data for ``val_accuracy`` and ``val_nll``, every ``evaluate_every`` rounds. With
            ``evaluation="clients"``, a setting, the clients score the network as often: ``client_accuracy``.
        on_round: called with the report of every round.
        checkpoint: a file that is replaced atomically every ``checkpoint_every`` rounds and at the end. With
            ``error_feedback`` a folder beside it, ``.residuals``, belongs to it.
        resume: continue from ``checkpoint`` if it exists; the final weights are bit-identical to those of an
            undisturbed run (with privacy they are where its randomness is the seed).
        workers: processes that run the clients, see :class:`.LocalEngine`; 1: this one.
            Where workers are spawned, not forked, a script must have ``if __name__ == "__main__":``.
        execution: ``loop``, ``vectorised`` or ``fused``, see there too.
        progress: whether lines are printed while it runs, see :class:`.Printed`.
        loggers: what gets the numbers of every round, ``["tensorboard"]``, see :class:`.Loggers`. Their files
            are in a folder beside the checkpoint, ``.logs``; without a checkpoint in a new one in ``runs/``.
        **settings: of :class:`.FederationSettings`, e.g. ``method="partitioned"``,
            ``chunks=(0.7, 0.2, 0.1)``, ``cohort=10``, ``local=LocalSettings(learning_rate=0.05)``.

    Raises:
        ValueError: settings, data, checkpoint or loggers do not fit; the message says what to change.
        ImportError: the library of a logger is not installed.
        ClientError: a client failed, for instance because its loss was not finite.
    """
    for name, count in (("evaluate_every", evaluate_every), ("checkpoint_every", checkpoint_every)):
        if count < 1:
            raise ValueError(f"{name} is a number of rounds, at least 1, got {count}.")
    data = _clients(shards)
    held_out = None if validation is None else as_dataset(validation)
    known = {field.name for field in fields(FederationSettings)} - {"clients"}  # these are the shards
    for name in settings:
        if name not in known:
            raise ValueError(f"There is no setting {name!r}: {nearest(name, known)}")
    chosen = FederationSettings(clients=len(data), **{"cohort": min(10, len(data)), **settings})
    if checkpoint is not None:
        chosen.check_checkpoints(checkpoint_every)
    for note in task.notes:
        print(note)
    federation = Federation(Protocol(task, chosen))
    if held_out is not None:
        federation.check(held_out, "validation")
    path = federation.resume(checkpoint, resume)
    if path is not None:
        federation.keep_in(path.with_suffix(".residuals"))
    metrics: list[RoundReport] = []

    def finish(report: RoundReport) -> None:
        last = report.round == rounds
        if (
            held_out is not None
            and chosen.evaluation != "none"
            and (report.round % evaluate_every == 0 or last)
        ):
            for name, value in federation.validated(held_out, chosen.evaluation_samples).items():
                setattr(report, name, value)
        log(report)
        if path is not None and (report.round % checkpoint_every == 0 or last):
            federation.save(path)
        metrics.append(report)
        if on_round is not None:
            on_round(report)

    logs = None if path is None else path.with_suffix(".logs")
    shown: dict[str, Any] = {
        "settings": chosen,
        "completed": federation.round,
        "total": rounds,
        "progress": progress,
    }
    with (
        LocalEngine(federation, data, workers, execution, evaluate_every) as engine,
        logged(loggers, logs, **shown) as log,
    ):
        engine.run(rounds, finish)
    return Result(federation, metrics)


def _clients(shards: Any) -> Sequence[Dataset]:
    """The data of each client.

    Raises:
        ValueError: they are those of one client, or cannot be read by a client's number.
    """
    several = isinstance(shards, (list, tuple))
    tensors = several and any(isinstance(shard, (Tensor, np.ndarray)) for shard in shards)
    alone = tensors or (not several and is_examples(shards))
    numbered = hasattr(shards, "__len__") and hasattr(shards, "__getitem__")
    if alone or not numbered or isinstance(shards, Mapping):
        raise ValueError(
            f"The clients' data are a list with the examples of each client, got a {type(shards).__name__}"
            f"{' of tensors' if tensors else ''}; write "
            f"federate(task, [data_of_client_0, data_of_client_1, ...])."
        )
    return [as_dataset(shard) for shard in shards] if several else _Lazy(shards)


class _Lazy(Sequence[Dataset]):
    """Shards that are read when they are asked for."""

    def __init__(self, shards: Sequence[Examples]) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, client: Any) -> Any:
        return as_dataset(self._shards[client])
