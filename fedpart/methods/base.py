"""Method: a policy that plans what is computed, and how the answers are combined."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.methods.halving import Halving
from fedpart.partition.nodes import divided
from fedpart.partition.partition import Partition, SeparateNetworks
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import Noise
from fedpart.randomness.streams import generator
from fedpart.registry import Registry, nearest
from fedpart.task.gradients import Job, Objective, Step
from fedpart.task.held_out import HeldOutScore
from fedpart.task.task import Batch, Task
from fedpart.training.local import LocalSettings
from fedpart.training.settings import RunSettings
from fedpart.training.state import ModelState
from fedpart.trees import Tree
from fedpart.updates.combining import COMBINATIONS
from fedpart.updates.combining.base import combined, spelled
from fedpart.updates.update import Update, descend

Shares = tuple[float, ...]
"""u_1..u_C of the chunks."""
DRAWS = 1000  # steps after which drawn sizes come again, so that to claim many costs the server nothing


@dataclass(frozen=True, eq=False)
class ClientView:
    """A client in a round, the same on the server and where the client is computed.

    Attributes:
        number: 0..N-1; chunk: 1..C, of the client; chunks: C.
        cap: 1..C, the largest subnetwork that the client's device computes; a plan stays within it.
        round: 1..
        seed: of the run.
        task: as the client computes it.
        local: how the run's clients train.
        parts: the architectures whose networks are parts of the client's, its own first.
        tasks: of all architectures, by number.
        psi: the server's in this round, ``[P]``; None where only a plan is asked for.
    """

    number: int
    chunk: int
    chunks: int
    cap: int
    round: int
    seed: int
    task: Task
    local: LocalSettings
    parts: tuple[int, ...] = (0,)
    tasks: Sequence[Task] = ()
    psi: Tensor | None = None

    def server_psi(self) -> Tensor:
        """A copy of :attr:`psi`, where it is there."""
        if self.psi is None:
            raise ValueError("A plan depends on the client, its chunk and the round, not on psi.")
        return self.psi.clone()

    def drawn_sizes(self, steps: int) -> list[int]:
        """Of :attr:`parts`, all equally often, those of the round's first steps; then they come again."""
        rng = generator(self.seed, "fjord", self.number, self.round)
        return [self.parts[place] for place in rng.integers(len(self.parts), size=min(steps, DRAWS))]


@dataclass(frozen=True)
class Schedule:
    """How centralised training goes on.

    Attributes:
        shares: u_1..u_C, proportions of the chunks' examples.
        iterations: of the method's schedule, without finetuning.
        psi_every: iterations from one step of psi to the next.
        learns_psi: whether there is any hyperparameter to learn.
    """

    shares: Shares
    iterations: int
    psi_every: int
    learns_psi: bool

    def steps_psi(self, iteration: int) -> bool:
        """Whether psi is stepped in ``iteration`` (1..)."""
        return self.learns_psi and iteration % self.psi_every == 0


class Method:
    """What every method has; the defaults are those of plain learning. Subclass :class:`FederatedMethod`,
    :class:`CentralMethod` or both in a file of its own and register it: ``@METHODS.register("name")``.

    Attributes:
        federated, centralised: whether it can be trained so.
        estimates: whether it has an estimate of log p(D) of its own.
    """

    federated: ClassVar[bool] = False
    centralised: ClassVar[bool] = False
    estimates: ClassVar[bool] = False

    def prepare(self, task: Task) -> Task:
        """The task as this method trains it."""
        return task

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        """Chunk proportions that the method uses, given the configured ones."""
        return tuple(chunks)

    def partition(
        self, task: Task, chunks: Shares, settings: RunSettings, space: ParameterSpace | None = None
    ) -> Partition:
        """The parameters' partition, given the chunk proportions that the method uses.

        Args:
            space: the numbers of all networks, where none has all of them; None: the task's.
        """
        space, u = space or task.parameter_space(len(chunks)), settings.parameters or chunks
        if len(chunks) == 1:
            return SeparateNetworks(space)
        known = {name: getattr(settings, name) for name in ("defaults", "seed", "chain")}
        return divided(settings.scheme, space, u, module=task.module, **known)

    def trained_psi(self, task: Task) -> Sequence[str]:
        """Names of the hyperparameters that are learned; what uploads say about the others is left out."""
        return task.psi_names

    def loss(
        self, task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
    ) -> Tensor:
        """Objective of a job on one batch, minimised: a scalar, in nats.

        A mean over examples, by ``batch.weights`` if there are any, and what does not depend on the batch:
        grouped and fused execution pad batches with examples of weight 0, and fused ones pool them.
        """
        return task.loss(w, psi, batch, noise)

    @property
    def remedy(self) -> str:
        """What to do if the loss is not finite, in a few words."""
        return "lower the learning rates, or check the data"


class FederatedMethod(Method):
    """A method whose clients compute what :meth:`plan` says, and whose server steps with the sum.

    Attributes:
        held_out: share of its examples that a client never learns from, for :meth:`feedback`.
        validates: share that it holds out for psi's gradients, which are then of these examples alone.
        draw_sizes: whether each local step trains a drawn one of the networks that are parts of the client's.
        halving: learning rates that are tried while a run trains; None: it has those of its settings.
    """

    federated = True
    held_out: float = 0.0
    validates: float = 0.0
    draw_sizes: bool = False
    halving: Halving | None = None

    def plan(self, client: ClientView) -> list[Job]:
        """What a client computes in a round; a function of the client, its chunk and the round."""
        raise TypeError(f"{type(self).__name__} does not define plan().")

    def combine(self, state: ModelState, total: Update) -> None:
        """Step the server's state with the cohort's sum, whose deltas are used up; see :func:`.descend`."""
        descend(state, total)

    def local_psi(self, client: ClientView) -> Tensor:
        """The psi ``[P]`` under which a client computes in a round, given the server's."""
        return client.server_psi()

    def local_settings(self, client: ClientView) -> LocalSettings:
        """How a client trains in a round: its rates, batches and epochs."""
        return client.local

    def objective(self, client: ClientView, targets: Callable[[], Tree]) -> Objective:
        """What a client minimises in place of :meth:`loss`, made anew for each of its jobs.

        Args:
            client: in its round.
            targets: gives those of the examples that the client learns from, ``[n, ...]``.
        """
        return self.loss

    def feedback(self, client: ClientView, before: HeldOutScore, after: HeldOutScore) -> Tensor:
        """With ``held_out``: what a client adds to the cohort's sum in place of psi's gradient.

        Args:
            client: in its round.
            before, after: scores of the job's subnetwork on the client's held-out examples (there may be
                none), at the server's values and with what the client has trained.

        Returns:
            ``[P]``.
        """
        raise TypeError(f"{type(self).__name__} holds examples out but does not define feedback().")

    def counted(self, update: Update, partition: Partition) -> Update:
        """Of a client's checked update what counts in the sum; it may be changed in place.

        Args:
            update: not yet weighted.
            partition: the server's.
        """
        return update

    @property
    def tells_clients_apart(self) -> bool:
        """Whether a client has a psi, settings, loss or steps of its own, or scores a network of its own."""
        hooks = type(self).local_psi, type(self).local_settings, type(self).objective
        return bool(self.held_out or self.draw_sizes) or hooks != (
            FederatedMethod.local_psi, FederatedMethod.local_settings, FederatedMethod.objective,
        )  # fmt: skip


class CentralMethod(Method):
    """A method that is trained on data in one place, by :meth:`steps`."""

    centralised = True

    def steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        """Optimiser steps of ``iteration`` (1..), in their order; ``rng`` is the iteration's."""
        raise TypeError(f"{type(self).__name__} does not define steps().")

    def stages(self, iterations: int, examples: int, batch_size: int) -> dict[str, int]:
        """Names of the stages of training, and the iteration at which each ends."""
        return {"trained": iterations}

    def psi_slices(self, task: Task) -> list[slice]:
        """Parts of psi with an optimiser state each; :class:`.Step` steps the first."""
        return [slice(None)]

    def finish(self, state: ModelState, data: Dataset) -> None:
        """Called at the end of every iteration; may step ``state.optimiser_psi``.

        Args:
            state: in which the iteration is completed.
            data: all examples.
        """

    def watch(self, task: Task, psi: Tensor) -> None:
        """Called after every step of psi.

        Raises:
            ValueError: psi shows that training has diverged; says so, and what to use instead.
        """

    def evidence(self, state: ModelState, data: Dataset) -> float:
        """The method's own estimate of log p(D), in nats; reports have L_ML without one."""
        raise TypeError(f"{type(self).__name__} does not define evidence().")


METHODS: Registry[type[Method]] = Registry("method", makes=(Method,))


def method_class(name: str) -> type[Method]:
    """The method in a name such as ``partitioned+scaffold``; all names in it are known."""
    method, ways = spelled(name)
    if ":" not in method and method not in METHODS:
        raise ValueError(f"Unknown method {method!r}: {nearest(method, [*METHODS, *COMBINATIONS])}")
    for way in ways:
        COMBINATIONS.resolve(way)  # refuses
    kind = METHODS.resolve(method)
    federated = not ways or getattr(kind, "federated", True)
    require(federated, f"{name!r} combines clients, and {method!r} has none; use it alone.")
    return kind


def build_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method called ``name``, or given as ``package.module:Class``, with its options; those of the ways
    to combine clients that the name has are among them."""
    method_class(name)  # refuses
    made: Method = METHODS.make(spelled(name)[0], combined(name, options)[0])
    return made
