"""Standard centralised training on all data: the baseline without learned hyperparameters."""

from __future__ import annotations

import numpy as np

from fedpart.methods.base import METHODS
from fedpart.methods.plain import Plain
from fedpart.methods.views import Schedule
from fedpart.task.jobs import Job, Step


@METHODS.register("none")
class Standard(Plain):
    """Plain training; with ``augment``, under the task's initial psi: retraining (App. G)."""

    def steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        return [Step(Job(subnetwork=1, partition=1), 1, 1)]
