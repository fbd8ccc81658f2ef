"""Settings of centralised training, the sections of its YAML; and what it tells while it runs."""

import math
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from fedpart.checks import Misfit, require
from fedpart.loggers.lines import in_words, metrics_line
from fedpart.training import optimisers
from fedpart.training.settings import RunOptions, RunSettings, documented, setting


@documented
@dataclass(frozen=True, kw_only=True)
class TrainingSettings(RunSettings, optimisers.DecaySettings):
    """Everything about centralised training but the task and the data; defaults are App. I.4's for MNIST.

    ``keep_best`` picks the largest of many values, which is biased upwards, and gives all chunks a say in
    when w_1 stops. Augerino, whose loss has both gradients, steps psi in every iteration, on w's batch.
    """

    chunks: tuple[float, ...] = setting(
        (0.8, 0.1, 0.1), "proportions u of the chunks of the training data, sum 1"
    )
    iterations: int = setting(
        10_000, "iterations of training, a step on weights and one on psi each, finetuning apart", ge=1
    )
    batch_size: int = setting(200, "examples per step on weights or psi, drawn with replacement (I.1)", ge=1)
    psi_every: int = setting(
        1,
        "iterations from one step on psi to the next, more is cheaper (I.1); augerino steps it in every one",
        ge=1,
    )
    optimiser: optimisers.OptimiserSettings = setting(
        optimisers.AdamSettings(), "of the weights, one state per partition"
    )
    scalars: float = setting(
        1.0,
        "learning rate of stacked scales and biases (of norms and Fixup) over that of the other weights; 0.1 "
        "for Fixup networks",
        gt=0,
        le=1,
    )
    optimiser_psi: optimisers.OptimiserSettings = setting(optimisers.AdamSettings(), "of psi")
    schedule: Literal["constant", "cosine"] = setting(
        "constant", "of the weights' learning rate, on total iterations: constant, or cosine to a last rate"
    )
    final_rate: float = setting(0.01, "of cosine: last learning rate over the first (I.4: 0.01)", gt=0, le=1)
    schedule_iterations: int | None = setting(
        None, "of cosine: iterations until the last rate; null: all of the run's", ge=1
    )
    keep_best: bool = setting(
        False, "end with the weights and psi whose evidence was best among the reports (early stopping, I.4)"
    )
    _others = (optimisers.SGDSettings(), optimisers.AdamWSettings())

    def __post_init__(self) -> None:
        super().__post_init__()
        of_psi = "A hypergradient is of psi; leave it out of optimiser."
        require(not getattr(self.optimiser, "hypergradient", 0.0), of_psi)
        sizes = self.method_options.get("draw_sizes")
        require(not sizes, "draw_sizes is of clients with architectures; training has none, so leave it out.")

    def may_grow(self, stages: Sized) -> bool:
        """Whether a run with these stages may go on for longer: nothing in it depends on how long it is."""
        return self.schedule == "constant" and not self.keep_best and len(stages) == 1

    def rate(self, iteration: int) -> float:
        """The parameters' learning rate in ``iteration`` (1..), of the first (I.1: on total iterations)."""
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (iteration - 1) / (self.schedule_iterations or self.iterations))
        return self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * done)) / 2


class TrainingOptions(RunOptions, total=False):
    """Those of :class:`TrainingSettings`; a test holds the two together. A mapping stands for a group of
    settings, such as ``optimiser={"name": "sgd", "momentum": 0.9}``."""

    weight_decay: float
    decay_scaling: Literal["reciprocal", "square_root", "none"]
    iterations: int
    batch_size: int
    psi_every: int
    optimiser: optimisers.OptimiserSettings | Mapping[str, Any]
    scalars: float
    optimiser_psi: optimisers.OptimiserSettings | Mapping[str, Any]
    schedule: Literal["constant", "cosine"]
    final_rate: float
    schedule_iterations: int | None
    keep_best: bool


class TrainingError(RuntimeError):
    """Training cannot go on: the loss is not finite, or the method has diverged; one sentence."""


@contextmanager
def one_sentence(iteration: int) -> Iterator[None]:
    """Within this context, an iteration that fails says so as a :class:`TrainingError`."""
    try:
        yield
    except (IndexError, Misfit) as error:
        raise TrainingError(str(error if isinstance(error, Misfit) else Misfit(error))) from error
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

    def __str__(self) -> str:
        return f"iteration {self.iteration}: {in_words(metrics_line(self))}"
