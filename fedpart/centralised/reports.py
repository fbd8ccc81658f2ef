"""What centralised training tells while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedpart.task.gradients import MISFIT


class TrainingError(RuntimeError):
    """Training cannot go on: the loss is not finite, or the method has diverged; one sentence."""


@contextmanager
def one_sentence(iteration: int) -> Iterator[None]:
    """Within this context, an iteration that fails says so as a :class:`TrainingError`."""
    try:
        yield
    except IndexError as error:
        raise TrainingError(f"The data do not fit the network ({error}); {MISFIT}.") from error
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise TrainingError(f"Training stopped at iteration {iteration}: {reason}.") from error


class Stage(NamedTuple):
    """A part of training: its name, and the iteration at which it ends."""

    name: str
    end: int


class Best(NamedTuple):
    """The state of the largest L_ML among the reports: iteration, L_ML (nats), w ``[size]``, psi ``[P]``."""

    iteration: int
    lml: float
    w: Tensor
    psi: Tensor


@dataclass
class TrainingReport:
    """What is known at an iteration.

    Attributes:
        iteration: completed; seconds: wall-clock since the last report, with L_ML.
        train_loss: what the parameter steps since the last report minimised, its mean: nats per example (for
            Augerino with its regulariser).
        psi: raw values by name, see :func:`.told`; physical: in units that a person reads.
        lml: L_ML in nats, or another estimate of the evidence that was asked for; None if no chunk is scored
            by a network that has not seen it.
        stage: name of the stage that ends here, if one does.
        val_accuracy: fraction; val_nll: nats per example; None unless the caller evaluates.
    """

    iteration: int
    seconds: float
    train_loss: float | None
    psi: dict[str, list[float] | dict[str, float]]
    physical: dict[str, float]
    lml: float | None = None
    stage: str | None = None
    val_accuracy: float | None = None
    val_nll: float | None = None
