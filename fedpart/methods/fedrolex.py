"""FedRolex (Alam et al. 2022): clients' networks are a window of the units that moves on every round."""

from torch import Tensor

from fedpart.methods.base import METHODS
from fedpart.methods.fedavg import FedAvg
from fedpart.partition.nodes import rolled
from fedpart.partition.partition import Partition
from fedpart.partition.space import ParameterSpace
from fedpart.task.task import Task
from fedpart.training.optimisers import SGDSettings
from fedpart.training.settings import RunSettings
from fedpart.training.state import ModelState
from fedpart.updates.update import Update


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
        self,
        task: Task,
        chunks: tuple[float, ...],
        settings: RunSettings,
        space: ParameterSpace | None = None,
    ) -> Partition:
        server = getattr(settings, "server", None)
        if not isinstance(server, SGDSettings) or server.momentum:
            raise ValueError(
                "fedrolex moves units between rounds, which Adam's state and momentum cannot follow; set "
                "server: {name: sgd, learning_rate: 1.0}, in Python SGDSettings(1.0)."
            )
        if getattr(settings, "aggregation", "") == "buffered" or getattr(settings, "error_feedback", False):
            raise ValueError(
                "fedrolex moves units between rounds, which what clients found in earlier ones cannot "
                "follow; leave aggregation: buffered and error_feedback out."
            )
        if space is not None:
            raise ValueError(
                "fedrolex moves the units of plain layers, which networks with numbers of their own cannot "
                "follow; leave sharing and private parameters out."
            )
        found = super().partition(task, chunks, settings)
        self._moved = rolled(found.space, task.module, settings.chain)
        return found

    def combine(self, state: ModelState, total: Update) -> None:
        super().combine(state, total)
        own = state.partition.subnetwork(state.w, 1)
        state.w.copy_(state.partition.take(own[self._moved.to(own.device)], 1, 1))
