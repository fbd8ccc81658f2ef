"""Standard centralised training on all data: the baseline without learned hyperparameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpart.methods.base import METHODS
from fedpart.methods.plain import Plain
from fedpart.task.jobs import Job, Step

if TYPE_CHECKING:
    from fedpart.centralised.training import Training


@METHODS.register("none")
class Standard(Plain):
    """Plain training; with ``augment``, under the task's initial psi: retraining (App. G)."""

    def steps(self, training: Training, iteration: int, rng: np.random.Generator) -> list[Step]:
        return [Step(Job(subnetwork=1, partition=1), 1, 1)]
