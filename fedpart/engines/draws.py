"""Which random numbers a job asks for, which has to be known where several are computed at once."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpart.engines.executor import Executor
from fedpart.randomness.shapes import Draws, ShapeRecorder
from fedpart.task.jobs import Job
from fedpart.task.task import Batch
from fedpart.updates.round import Round


def draws(executor: Executor, round: Round, job: Job, batch: Batch) -> Draws:
    """Shapes of the noise that the loss of ``job`` asks for, found by a pass without gradients."""
    return loss_and_draws(executor, round, job, batch)[1]


def loss_and_draws(executor: Executor, round: Round, job: Job, batch: Batch) -> tuple[Tensor, Draws]:
    """The loss of ``job`` in nats, a scalar, where every random number is 0.5; and see :func:`draws`."""
    task, method = executor.protocol.task, executor.protocol.method
    recorder = ShapeRecorder(executor.device, task.dtype)
    _, point = executor.subnetwork(round, executor.protocol.partition, job.subnetwork)
    with torch.no_grad():
        loss = method.loss(task, job, point.tensors, executor.on_device(round).psi, batch, recorder)
    return loss, recorder.recorded
