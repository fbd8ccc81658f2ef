"""Validation-set optimisation: the traditional split, with psi trained on the held-out part (Table 2)."""

import math
from collections.abc import Sequence

import numpy as np

from fedpart.methods.base import METHODS, CentralMethod, Schedule
from fedpart.partition.partition import Partition
from fedpart.partition.separate import SeparateNetworks
from fedpart.partition.space import ParameterSpace
from fedpart.task.gradients import Job, Step
from fedpart.task.task import Task
from fedpart.training.settings import RunSettings


@METHODS.register("validation")
class ValidationSet(CentralMethod):
    """One network trained on chunk 1; psi on chunk 2, the validation set, through the same network.

    Args:
        finetune_epochs: how often each example of both chunks is drawn, on average, after psi is optimised,
            with psi fixed; 0 for none (20 in Section 5).
        finetune_learning_rate: of these; None: the settings', under their schedule.

    Raises:
        ValueError: not two chunks, or a setting below 0.
    """

    def __init__(self, finetune_epochs: float = 0, finetune_learning_rate: float | None = None) -> None:
        if not 0 <= finetune_epochs < math.inf:
            raise ValueError(f"finetune_epochs is a number >= 0, got {finetune_epochs}.")
        if finetune_learning_rate is not None and not 0 < finetune_learning_rate < math.inf:
            raise ValueError(f"finetune_learning_rate is positive, got {finetune_learning_rate}.")
        self.finetune_epochs, self.finetune_learning_rate = finetune_epochs, finetune_learning_rate

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        if len(chunks) != 2:
            raise ValueError(
                f"Validation-set optimisation divides the data into a training and a validation part: give "
                f"two chunk proportions above 0, for instance [0.9, 0.1], not {len(chunks)}."
            )
        return tuple(chunks)

    def partition(
        self,
        task: Task,
        chunks: tuple[float, ...],
        settings: RunSettings,
        space: ParameterSpace | None = None,
    ) -> Partition:
        return SeparateNetworks(task.parameter_space(1))

    def stages(self, iterations: int, examples: int, batch_size: int) -> dict[str, int]:
        if not self.finetune_epochs:
            return {"optimised": iterations}
        further = math.ceil(self.finetune_epochs * examples / batch_size)
        return {"optimised": iterations, "finetuned": iterations + further}

    def steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        if iteration > schedule.iterations:
            return [Step(Job(subnetwork=1, partition=1), 1, 2, self.finetune_learning_rate)]
        steps = [Step(Job(subnetwork=1, partition=1), 1, 1)]
        if schedule.steps_psi(iteration):
            steps.append(Step(Job(subnetwork=1, psi=True), 2, 2))
        return steps
