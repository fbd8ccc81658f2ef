"""Stage: one safeguard or saving of a run, from the client's training to the server's step."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor

from fedpart.task.gradients import Job
from fedpart.updates.update import Norms, Round, Update


class Run(Protocol):
    """What stages are made of: the parts of :class:`.federated.protocol.Protocol` that they ask for."""

    settings: Any
    task: Any
    method: Any
    partition: Any
    psi_mask: Tensor
    kinds: Any
    fingerprint: str
    download: Any
    chunks: tuple[float, ...]
    expected_shares: Any

    def chunk(self, client: int) -> int:
        """1..C."""

    def plan(self, client: int, round: int) -> list[Job]:
        """What the client is asked for."""

    def upload_sizes(self, client: int, jobs: Sequence[Job]) -> dict[int, int]:
        """Numbers of each part of its answer."""


class Stage:
    """What a run does with updates, beside summing them. A subclass is one file, and a run has those that its
    settings make (``stages_of``), in every process its own: ``begin``, ``send``, ``sent`` and ``receive`` are
    asked of other objects than the rest, remember nothing, and hand norms on to ``total``.

    Attributes:
        equal: whether every client weighs 1 in psi's mean.
        private: whether what clients have lost, visited and taken stays with them, and every round steps.
    """

    equal: ClassVar[bool] = False
    private: ClassVar[bool] = False

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        """Whether a run with these settings has the stage; all have it unless a subclass says otherwise."""
        return True

    @classmethod
    def check(cls, settings: Any) -> None:
        """Refuse settings that make no sense with the stage; asked of all stages.

        Raises:
            ValueError: one sentence.
        """

    def start(self, round: Round) -> Round:
        """On the server: the round with what the stage sends along."""
        return round

    def cohort(self, round: int, available: Sequence[int] | None = None, **more: Any) -> list[int] | None:
        """On the server: who is asked, ascending, in place of :meth:`.Protocol.cohort`, which draws where no
        stage does."""
        return None

    def begin(self, update: Update, client: int, round: Round) -> None:
        """On the client: before it computes its update, which has ``examples`` alone."""

    def send(self, update: Update, client: int, round: Round) -> None:
        """On the client: change its update, in place. Stages are asked in their order."""

    def sent(self, update: Update, client: int, round: Round) -> None:
        """On the client: after all stages have changed its update.

        Raises:
            OSError: what has to be kept cannot be.
        """

    def receive(self, update: Update, round: Round) -> Norms:
        """On the server, or a process of it: change a client's checked update, in place; the norms it had."""
        return {}

    def total(self, total: Update | None, round: int, norms: Mapping[int, Norms]) -> Update | None:
        """On the server: what becomes of the cohort's sum, in place; None: nobody has answered.

        ``norms``: that :meth:`receive` has told, by client in the order of the sum."""
        return total

    def accept(self, total: Update, round: int, clients: Sequence[int]) -> None:
        """On the server: it steps with the sum, which is of these clients."""

    def report(self, round: int) -> dict[str, Any]:
        """On the server: fields of the report on the round that is completed."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """On the server: what decides how the run goes on, by its key in checkpoints; empty: nothing does."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`, from the state of the whole run."""

    def keep_in(self, residuals: Path, releases: Path, run: str) -> None:
        """On the server: where files of the run are, before a checkpoint is loaded.

        Args:
            residuals: folder of what clients leave.
            releases: file in which releases of a private run are counted.
            run: what describes the run.

        Raises:
            ValueError: a file is damaged, or of another run.
        """

    def loaded(self) -> None:
        """On the server: a checkpoint has been loaded.

        Raises:
            ValueError: a file does not fit it.
        """

    def saved(self) -> None:
        """On the server: a checkpoint has been written."""
