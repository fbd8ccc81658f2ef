"""Clients with networks of nested widths: HeteroFL, FedRolex and FjORD."""

from collections.abc import Callable, Mapping
from itertools import cycle

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.checks import require
from fedpart.methods.base import DRAWS, METHODS, ClientView, Shares
from fedpart.methods.plain import FedAvg
from fedpart.partition.nodes import rolled
from fedpart.partition.partition import Partition
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import Noise
from fedpart.task.gradients import Job, Objective
from fedpart.task.task import Batch, Task
from fedpart.training.optimisers import SGDSettings
from fedpart.training.settings import RunSettings
from fedpart.training.state import ModelState
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
        self, task: Task, chunks: Shares, settings: RunSettings, space: ParameterSpace | None = None
    ) -> Partition:
        partition = super().partition(task, chunks, settings, space)
        if self.mask_classes:
            _check_logits(task, "mask_classes sets logits to 0")
            decay = getattr(getattr(settings, "local", None), "weight_decay", 0.0)
            fault = "mask_classes averages rows by themselves, which is done with architectures"
            remedy = "give at least one, [{share: 1.0, model_options: {}}]"
            require(getattr(settings, "architectures", None) is not None, f"{fault}; {remedy}.")
            require(
                not decay,
                "mask_classes tells the rows of absent classes by changes of 0, which weight decay makes "
                "others; set local.weight_decay to 0.",
            )
            fault = "mask_classes leaves rows out as clients' classes say, which privacy may not depend on"
            require(getattr(settings, "privacy", None) is None, f"{fault}; leave one of the two out.")
            require(
                space is None,
                "mask_classes averages rows of the last layer, which networks with numbers of their own do "
                "not have in common; leave sharing and private parameters out.",
            )
            partition.groups = _rows(partition.space)
        return partition

    def objective(self, client: ClientView, targets: Callable[[], Tree]) -> Objective:
        if not self.mask_classes:
            return self.loss
        rows, present = client.task.parameter_space(1).entries[-1].shape[0], targets()
        absent = torch.ones(rows, dtype=torch.bool, device=present.device)
        absent[present] = False

        def masked(logits: Tensor) -> Tensor:
            if logits.shape[1:] != absent.shape:
                raise ValueError(
                    f"mask_classes takes the rows of the last layer for classes, but it has {rows} for "
                    f"outputs {list(logits.shape)}; let the network end with the layer of its logits"
                )
            return logits.masked_fill(absent, 0.0)

        def loss(
            task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
        ) -> Tensor:
            return task.predict(w, psi, batch, noise, True, masked).nll.mean()

        return loss if absent.any() else self.loss

    def counted(self, update: Update, partition: Partition) -> Update:
        if self.mask_classes:
            group_of = partition.group_of
            held = {0, *(group_of[j - 1] for j, delta in update.cells.items() if delta.any())}
            for j in [j for j in update.cells if group_of[j - 1] not in held]:
                del update.parts[j]
        return update


def _rows(space: ParameterSpace) -> Tensor:
    """The row of each number of the last layer, 1..K, and 0 of the others; ``[size]`` in the own order."""
    row_of = torch.zeros(space.size, dtype=torch.int64)
    for entry in space.entries:
        if entry.layer == space.entries[-1].layer:
            rows = torch.arange(1, entry.shape[0] + 1).repeat_interleave(entry.size // entry.shape[0])
            row_of[entry.offset : entry.offset + entry.size] = rows
    return row_of


@METHODS.register("fedrolex")
class FedRolex(FedAvg):
    """FedAvg over ``architectures`` whose windows begin at unit t after t steps, and wrap around.

    Here the units move, and not the window: after each round the server rolls every layer's units by one,
    which changes nothing about the network but which of them come first. So the round is HeteroFL's. Adam's
    state belongs to cells, whose units change, so the server steps by SGD.

    Raises:
        ValueError: the server has another optimiser, answers of earlier rounds count, or the order of the
            network's layers is not known.
    """

    _moved: Tensor

    def partition(
        self, task: Task, chunks: Shares, settings: RunSettings, space: ParameterSpace | None = None
    ) -> Partition:
        server = getattr(settings, "server", None)
        buffered = getattr(settings, "buffer", None) is not None
        fault = "fedrolex moves units between rounds, which Adam's state and momentum cannot follow"
        remedy = "set server: {name: sgd, learning_rate: 1.0}, in Python SGDSettings(1.0)"
        require(isinstance(server, SGDSettings) and not server.momentum, f"{fault}; {remedy}.")
        fault = "fedrolex moves units between rounds, which what clients found in earlier ones cannot follow"
        remedy = "leave buffer and error_feedback out"
        require(not (buffered or getattr(settings, "error_feedback", False)), f"{fault}; {remedy}.")
        require(
            space is None,
            "fedrolex moves the units of plain layers, which networks with numbers of their own cannot "
            "follow; leave sharing and private parameters out.",
        )
        partition = super().partition(task, chunks, settings)
        self._moved = rolled(partition.space, task.module, settings.chain)
        return partition

    def combine(self, state: ModelState, total: Update) -> None:
        super().combine(state, total)
        weights = state.partition.subnetwork(state.w, 1)
        state.w.copy_(state.partition.take(weights[self._moved.to(weights.device)], 1, 1))


@METHODS.register("fjord")
class FjORD(FedAvg):
    """FedAvg over ``architectures``: each local step trains one of those that are parts of the client's.

    Every size that the client's device can compute is drawn equally often, its own included. A number moves
    by the mean over the local steps that have trained it.

    Args:
        distil: each local step trains the client's whole network on the labels, and the part that is drawn,
            if it is another, on the whole one's probabilities at the step's beginning, which are constants
            there (the paper's self-distillation). The step goes along the sum of both gradients, and the
            loss that clients tell is the sum of both losses.
        augment: see :class:`.Plain`.

    Raises:
        ValueError: ``distil`` for targets that are no classes.
    """

    def __init__(self, distil: bool = False, augment: bool = False) -> None:
        super().__init__(augment)
        self.distil, self.draw_sizes = distil, not distil

    def prepare(self, task: Task) -> Task:
        if self.distil:
            _check_logits(task, "distil trains on probabilities")
        return super().prepare(task)

    def objective(self, client: ClientView, targets: Callable[[], Tree]) -> Objective:
        drawn, parts = cycle(client.drawn_sizes(DRAWS)), client.parts

        def distilled(
            task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
        ) -> Tensor:
            predicted = task.predict(w, psi, batch, noise, True)
            loss, size = predicted.nll.mean(), next(drawn)
            if size == parts[0]:
                return loss
            part = client.tasks[size]
            shapes = {name: parameter.shape for name, parameter in part.module.named_parameters()}
            corners = {name: w[name][tuple(map(slice, shape))] for name, shape in shapes.items() if name in w}
            learned = part.outputs(corners, psi, batch.inputs, noise)
            return loss + F.cross_entropy(learned, predicted.outputs.detach().softmax(1))

        return distilled if self.distil and len(parts) > 1 else self.loss


def _check_logits(task: Task, what: str) -> None:
    """Refuse a task whose outputs are not the logits of one class per example."""
    ends = task.likelihood_name, task.average
    fault = f"{what} of classes, but the likelihood is {ends[0]} with the average {ends[1]}"
    remedy = "use classification with average logits, or leave that option out"
    require(ends == ("classification", "logits"), f"{fault}; {remedy}.")
