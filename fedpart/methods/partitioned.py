"""Partitioned networks, federated (App. J), centralised (I.1), and what they are compared with."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpart.checks import require
from fedpart.methods.base import METHODS, CentralMethod, ClientView, FederatedMethod, Schedule, Shares
from fedpart.methods.halving import Halving
from fedpart.partition.partition import Partition, SeparateNetworks
from fedpart.partition.space import ParameterSpace
from fedpart.task.gradients import Job, Step
from fedpart.task.task import Task
from fedpart.training.settings import RunSettings, check_names


@METHODS.register("partitioned")
class Partitioned(FederatedMethod, CentralMethod):
    """w_k is trained on chunks 1..k through w_s^(k), psi on chunk k through w_s^(k-1), which never saw it.

    Federated, a client of chunk k and cap c (C, or less) trains each w_j, j = k..c, from the server's values
    (Eq. 25); if 2 <= k <= c+1 it also takes psi's gradient there through w_s^(k-1) (Eq. 26).
    Centralised, an iteration draws k ~ Cat(u) and steps w_k (Eq. 3), then k ~ Cat(u_2..u_C) and steps psi
    (Eq. 4).

    Args:
        draw_sizes: federated, with ``architectures``: each local step goes through one of the networks that
            are parts of the client's, drawn and averaged as in :class:`.FjORD`; psi's gradient is the
            client's whole network's.
        halving: federated, multiples of the learning rates of which L_ML keeps one while the run trains,
            ``{"server": [1, 3, 10], "psi": [1, 3], "local": [1], "rounds": 10}``; see :class:`.Halving`.
    """

    def __init__(self, draw_sizes: bool = False, halving: Mapping[str, Any] | None = None) -> None:
        self.draw_sizes = draw_sizes
        if halving is not None:
            such = "write {server: [1, 3, 10], rounds: 15}, say"
            require(isinstance(halving, Mapping), f"halving has multiples of rates, got {halving!r}; {such}.")
            check_names(halving, Halving, "halving")
            self.halving = Halving(**halving)

    def plan(self, client: ClientView) -> list[Job]:
        k = client.chunk
        jobs = [Job(subnetwork=j, partition=j) for j in range(k, client.cap + 1)]
        if 2 <= k <= client.cap + 1 and client.task.psi_space.size:
            jobs.append(Job(subnetwork=k - 1, psi=True))
        return jobs

    def steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        k = 1 + int(rng.choice(len(schedule.shares), p=np.array(schedule.shares)))
        return [Step(Job(subnetwork=k, partition=k), 1, k), *self.psi_steps(schedule, iteration, rng)]

    def psi_steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        """The step of psi in a centralised iteration, if it has one."""
        u = np.array(schedule.shares[1:])
        if not (len(u) and schedule.steps_psi(iteration)):
            return []
        k = 2 + int(rng.choice(len(u), p=u / u.sum()))
        return [Step(Job(subnetwork=k - 1, psi=True), k, k)]


@METHODS.register("separate")
class Separate(Partitioned):
    """As partitioned networks, but w_k is a network of its own (Section 5, Figure 3).

    An iteration steps every network, so each is trained as long as a plain one: C times the work and memory.

    Raises:
        ValueError: settings that divide one network's parameters.
    """

    federated = False

    def partition(
        self, task: Task, chunks: Shares, settings: RunSettings, space: ParameterSpace | None = None
    ) -> Partition:
        require(
            (settings.parameters, settings.scheme, settings.defaults) == (None, "random", "initial"),
            "Separate networks have no partitions within them; leave parameters, scheme, defaults away.",
        )
        return SeparateNetworks(task.parameter_space(1), len(chunks))

    def steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        networks = range(1, len(schedule.shares) + 1)
        steps = [Step(Job(subnetwork=k, partition=k), 1, k) for k in networks]
        return [*steps, *self.psi_steps(schedule, iteration, rng)]


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
        require(0 <= finetune_epochs < math.inf, f"finetune_epochs is a number >= 0, got {finetune_epochs}.")
        rate = finetune_learning_rate
        require(rate is None or 0 < rate < math.inf, f"finetune_learning_rate is positive, got {rate}.")
        self.finetune_epochs, self.finetune_learning_rate = finetune_epochs, rate

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        require(
            len(chunks) == 2,
            f"Validation-set optimisation divides the data into a training and a validation part: give two "
            f"chunk proportions above 0, for instance [0.9, 0.1], not {len(chunks)}.",
        )
        return tuple(chunks)

    def partition(
        self, task: Task, chunks: Shares, settings: RunSettings, space: ParameterSpace | None = None
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
