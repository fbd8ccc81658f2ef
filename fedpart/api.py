"""federate(): a whole run in one call, in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpart.data.dataset import Dataset
from fedpart.engines.local import LocalEngine
from fedpart.federation import Federation, RoundReport
from fedpart.protocol import Protocol
from fedpart.settings import FederationSettings
from fedpart.task import Task

Shard = Dataset | tuple[Tensor, Tensor]


class Result:
    """What a run has learned.

    Attributes:
        metrics: one :class:`~fedpart.federation.RoundReport` per round.
        federation: the final state.
    """

    def __init__(self, federation: Federation, metrics: list[RoundReport]) -> None:
        self.federation, self.metrics = federation, metrics

    @property
    def psi(self) -> dict[str, float]:
        """The hyperparameters found, in units that a person reads."""
        return self.federation.protocol.task.physical(self.federation.psi)

    def module(self) -> nn.Module:
        """The trained network as a plain module on the CPU, in eval mode, norms folded and psi of its layers set.

        It does not contain the input transforms: average it over transformed inputs yourself, or use
        :meth:`predict`.
        """
        module = copy.deepcopy(self.federation.protocol.task.module)
        values = {**self.federation.tensors(), **self.federation.psi_tensors()}
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(values[name])
        return module.eval()

    def predict(self, x: Tensor) -> Tensor:
        """Outputs ``[n, ...]`` of the full network for inputs ``[n, ...]``, S samples averaged, dropout off."""
        return torch.cat(list(self.federation.predict(x)))


def federate(
    task: Task,
    shards: Sequence[Shard],
    *,
    rounds: int = 100,
    validation: Shard | None = None,
    evaluate_every: int = 10,
    on_round: Callable[[RoundReport], None] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    **settings: Any,
) -> Result:
    """Train ``task`` over clients, in this process.

    Args:
        task: what is learned.
        shards: the clients' data, one :class:`Dataset` or ``(inputs, targets)`` each; client i holds shards[i].
        rounds: to complete.
        validation: held-out data for ``val_accuracy`` and ``val_nll``, every ``evaluate_every`` rounds.
        on_round: called with the report of every round.
        checkpoint: a file that is replaced atomically every ``checkpoint_every`` rounds and at the end.
        resume: continue from ``checkpoint`` if it exists; the final weights are bit-identical to an undisturbed run.
        **settings: of :class:`~fedpart.settings.FederationSettings`, e.g. ``method="partitioned"``,
            ``chunks=(0.7, 0.2, 0.1)``, ``cohort=10``, ``seed=0``, ``local=LocalSettings(learning_rate=0.05)``.

    Raises:
        ValueError: settings, data or checkpoint do not fit; the message says what to change.
        ClientError: a client's loss was not finite.
    """
    data = [shard if isinstance(shard, Dataset) else Dataset(*shard) for shard in shards]
    held_out = Dataset(*validation) if isinstance(validation, tuple) else validation
    settings.setdefault("cohort", min(10, len(data)))
    federation = Federation(Protocol(task, FederationSettings(clients=len(data), **settings)))
    path = Path(checkpoint) if checkpoint is not None else None
    if resume and path is not None and path.exists():
        federation.load(path)
    engine, metrics = LocalEngine(federation, data), []
    while federation.round < rounds:
        report = engine.run_round()
        last = report.round == rounds
        if held_out is not None and (report.round % evaluate_every == 0 or last):
            scores = federation.evaluate(held_out)
            report.val_accuracy, report.val_nll = scores.get("accuracy"), scores["nll"]
        if path is not None and (report.round % checkpoint_every == 0 or last):
            federation.save(path)
        metrics.append(report)
        if on_round is not None:
            on_round(report)
    return Result(federation, metrics)
