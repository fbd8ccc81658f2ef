"""What clients that are computed together must have in common: examples of one shape, for one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.engines.executor import Executor
from fedpart.federated.protocol import Protocol
from fedpart.randomness.noise import Draws, ShapeRecorder
from fedpart.task.gradients import Job
from fedpart.task.task import Batch
from fedpart.trees import leaves
from fedpart.updates.errors import ClientError
from fedpart.updates.update import Round


class NotTogether(ClientError):
    """The clients of a round cannot be computed in this way, and none of them is to blame."""


class NotAlike(ValueError):
    """Examples of two clients that do not fit into one tensor."""


class Alike:
    """Compares every client's examples with those of the first one that is seen.

    Where clients that fail are skipped, nothing is refused: one of another shape may be one that fails.
    """

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset]) -> None:
        self._seen, self._skips = set[int](), protocol.settings.on_client_error == "skip"
        self._first: tuple[int, dict[str, tuple[int, ...]]] | None = None
        if isinstance(shards, (list, tuple)):  # others are read when they are needed
            for client, shard in enumerate(shards):
                if type(shard) is Dataset:  # others are decoded when they are needed
                    self.check(client, shard)

    def check(self, client: int, shard: Dataset) -> None:
        """Refuse examples of another shape; a client is compared once."""
        if self._skips or client in self._seen or not len(shard):
            return
        parts = {"inputs": shard.inputs, "targets": shard.targets}
        of_client = {
            name: tuple(leaf.shape[1:]) for kind, part in parts.items() for name, leaf in leaves(part, kind)
        }
        first, shapes = self._first = self._first or (client, of_client)
        if of_client != shapes:
            name = next(name for name in {**of_client, **shapes} if of_client.get(name) != shapes.get(name))
            raise NotAlike(
                f"An example's {name} have the shape {of_client.get(name)} on client {client} and "
                f"{shapes.get(name)} on client {first}, so that they cannot be computed together; pad all "
                f"clients to one length, e.g. in collate_fn, or use execution: loop."
            )
        self._seen.add(client)


def loss_and_draws(executor: Executor, round: Round, job: Job, batch: Batch) -> tuple[Tensor, Draws]:
    """The loss of ``job`` in nats, if every random number were 0.3; and the shapes of its draws."""
    task, method = executor.protocol.task, executor.protocol.method
    recorder = ShapeRecorder(executor.device, task.dtype)
    point = executor.point(round, executor.protocol.partition, job.subnetwork)
    with torch.no_grad():
        loss = method.loss(task, job, point.tensors, executor.on_device(round).psi, batch, recorder)
    return loss, recorder.recorded
