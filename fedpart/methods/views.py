"""What methods see of a run: a client in a round, and the schedule of centralised training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedpart.task.task import Task
from fedpart.training.local import LocalSettings


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
        """:attr:`psi`, where it is there.

        Raises:
            ValueError: this view is for a plan, which is made without it.
        """
        if self.psi is None:
            raise ValueError("A plan depends on the client, its chunk and the round, not on psi.")
        return self.psi


@dataclass(frozen=True)
class Schedule:
    """How centralised training goes on.

    Attributes:
        shares: u_1..u_C, proportions of the chunks' examples.
        iterations: of the method's schedule, without finetuning.
        psi_every: iterations from one step of psi to the next.
        learns_psi: whether there is any hyperparameter to learn.
    """

    shares: tuple[float, ...]
    iterations: int
    psi_every: int
    learns_psi: bool

    def steps_psi(self, iteration: int) -> bool:
        """Whether psi is stepped in ``iteration`` (1..)."""
        return self.learns_psi and iteration % self.psi_every == 0
