"""HeteroFL (Diao et al. 2021): clients with networks of nested widths, and a loss of their own classes."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedpart.methods.base import METHODS, ClientView, check_logits
from fedpart.methods.fedavg import FedAvg
from fedpart.partition.partition import Partition
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import Noise
from fedpart.task.gradients import Job, Objective
from fedpart.task.task import Batch, Task
from fedpart.training.settings import RunSettings
from fedpart.trees import Tree
from fedpart.updates.update import Update


@METHODS.register("heterofl")
class HeteroFL(FedAvg):
    """FedAvg over ``architectures``: a number is averaged over the clients that have it.

    With ``mask_classes`` a client learns from the classes it has. It sets the logits of the others to 0, and
    their rows, weights and biases, of the layer that is defined last are left out of the mean. The server
    tells absent rows by changes that are all exactly 0, so these are sent as any others, and with them which
    classes a client lacks. A row whose gradients are all 0, because the client is certain of every example,
    is left out too.

    Args:
        mask_classes: see above; as in the authors' code (``src/models/conv.py`` and ``src/fed.py``), where
            it is on.
        augment: see :class:`.Plain`.

    Raises:
        ValueError: with ``mask_classes``: there are no architectures, or the targets are no classes; or what
            changes rows of absent classes, counts the clients of a cell beforehand, or keeps numbers from
            other networks: weight decay, privacy, sharing.
    """

    def __init__(self, mask_classes: bool = False, augment: bool = False) -> None:
        super().__init__(augment)
        self.mask_classes = mask_classes

    def partition(
        self,
        task: Task,
        chunks: tuple[float, ...],
        settings: RunSettings,
        space: ParameterSpace | None = None,
    ) -> Partition:
        found = super().partition(task, chunks, settings, space)
        if self.mask_classes:
            check_logits(task, "mask_classes sets logits to 0")
            local = getattr(settings, "local", None)
            if getattr(settings, "architectures", None) is None:
                raise ValueError(
                    "mask_classes averages rows by themselves, which is done with architectures; give at "
                    "least one, [{share: 1.0, model_options: {}}]."
                )
            if getattr(local, "weight_decay", 0.0):
                raise ValueError(
                    "mask_classes tells the rows of absent classes by changes of 0, which weight decay makes "
                    "others; set local.weight_decay to 0."
                )
            if getattr(settings, "privacy", None) is not None:
                raise ValueError(
                    "mask_classes leaves rows out as clients' classes say, which privacy may not depend on; "
                    "leave one of the two out."
                )
            if space is not None:
                raise ValueError(
                    "mask_classes averages rows of the last layer, which networks with numbers of their own "
                    "do not have in common; leave sharing and private parameters out."
                )
            found.groups = _rows(found.space)
        return found

    def objective(self, client: ClientView, targets: Callable[[], Tree]) -> Objective:
        if not self.mask_classes:
            return self.loss
        rows = client.task.parameter_space(1).entries[-1].shape[0]
        there = targets()
        absent = torch.ones(rows, dtype=torch.bool, device=there.device)
        absent[there] = False
        return _Masked(absent) if absent.any() else self.loss

    def counted(self, update: Update, partition: Partition) -> Update:
        if self.mask_classes:
            group_of = partition.group_of
            held = {0, *(group_of[j - 1] for j, delta in update.deltas.items() if delta.any())}
            for j in [j for j in update.deltas if group_of[j - 1] not in held]:
                del update.deltas[j]
        return update


class _Masked:
    """The loss without the classes that are ``absent [K]``."""

    def __init__(self, absent: Tensor) -> None:
        self._absent = absent

    def __call__(
        self, task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
    ) -> Tensor:
        return task.predict(w, psi, batch, noise, True, self._masked).nll.mean()

    def _masked(self, logits: Tensor) -> Tensor:
        if logits.shape[1:] != self._absent.shape:
            raise ValueError(
                f"mask_classes takes the rows of the last layer for classes, but it has {len(self._absent)} "
                f"for outputs {list(logits.shape)}; let the network end with the layer of its logits"
            )
        return logits.masked_fill(self._absent, 0.0)


def _rows(space: ParameterSpace) -> Tensor:
    """The row of each number of the last layer, 1..K, and 0 of the others; ``[size]`` in the own order."""
    found = torch.zeros(space.size, dtype=torch.int64)
    for entry in space.entries:
        if entry.layer == space.entries[-1].layer:
            rows = torch.arange(1, entry.shape[0] + 1).repeat_interleave(entry.size // entry.shape[0])
            found[entry.offset : entry.offset + entry.size] = rows
    return found
