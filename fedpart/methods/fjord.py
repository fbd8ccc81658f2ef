"""FjORD (Horvath et al. 2021): ordered dropout, a width drawn for every local step."""

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from fedpart.methods.base import METHODS, ClientView, check_logits
from fedpart.methods.fedavg import FedAvg
from fedpart.randomness.noise import Noise
from fedpart.randomness.streams import generator
from fedpart.task.gradients import Job, Objective
from fedpart.task.task import Batch, Task
from fedpart.trees import Tree


@METHODS.register("fjord")
class FjORD(FedAvg):
    """FedAvg over ``architectures``: each local step trains one of those that are parts of the client's.

    Every size that the client's device can compute is drawn equally often, its own included.

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
        self.distil = distil

    def prepare(self, task: Task) -> Task:
        if self.distil:
            check_logits(task, "distil trains on probabilities")
        return super().prepare(task)

    def architectures(self, client: ClientView, steps: int) -> list[int]:
        if self.distil:
            return [client.parts[0]] * steps
        return [client.parts[drawn] for drawn in _rng(client).integers(len(client.parts), size=steps)]

    def objective(self, client: ClientView, targets: Callable[[], Tree]) -> Objective:
        return _Distilled(client) if self.distil and len(client.parts) > 1 else self.loss


class _Distilled:
    """The loss of the whole network, and of a part that is drawn anew every time it is called."""

    def __init__(self, client: ClientView) -> None:
        self._client, self._rng = client, _rng(client)

    def __call__(
        self, task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
    ) -> Tensor:
        predicted = task.predict(w, psi, batch, noise, True)
        loss = predicted.nll.mean()
        size = self._client.parts[int(self._rng.integers(len(self._client.parts)))]
        if size == self._client.parts[0]:
            return loss
        part = self._client.tasks[size]
        shapes = {name: parameter.shape for name, parameter in part.module.named_parameters()}
        corners = {name: w[name][tuple(map(slice, shape))] for name, shape in shapes.items() if name in w}
        learned = part.outputs(corners, psi, batch.inputs, noise)
        return loss + F.cross_entropy(learned, predicted.outputs.detach().softmax(1))


def _rng(client: ClientView) -> np.random.Generator:
    """Of the sizes that are drawn in a round."""
    return generator(client.seed, "fjord", client.number, client.round)
