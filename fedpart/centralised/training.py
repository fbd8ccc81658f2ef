"""The state of centralised training, and its iterations: a step of one partition, then one of psi (I.1)."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from fedpart.centralised.settings import (
    Best,
    Stage,
    TrainingError,
    TrainingReport,
    TrainingSettings,
    one_sentence,
)
from fedpart.checks import require
from fedpart.data.cells import check_examples
from fedpart.data.dataset import Dataset
from fedpart.data.given import Examples, as_dataset
from fedpart.data.splitting.parts import in_chunks
from fedpart.methods.base import CentralMethod, Schedule, build_method
from fedpart.nn.hyperparameters.base import told
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.streams import generator
from fedpart.task.gradients import Gradients, Job, Point, Step, gradients, psi_mask
from fedpart.task.task import Batch, Task
from fedpart.training.agreement import agreement
from fedpart.training.state import ModelState


class Training(ModelState):
    """Centralised training of a task: partitioned networks, or a baseline, by its method.

    Args:
        task: what is learned; the method may change it.
        dataset: the training data, divided at random into chunks; or a list of the chunks themselves, whose
            sizes then take the place of the settings' proportions.
        settings: see :class:`.TrainingSettings`.
        identity: text that stands for the data in checkpoints.
        evidence: another estimate of the log marginal likelihood than L_ML, in nats, for reports and
            ``keep_best``; see :func:`.laplace_evidence`.

    Attributes:
        shares: u_1..u_C, proportions of the chunks that the method uses.
        schedule: what the method sees.
        stages: the parts of training; the last ends it.
        best: see ``keep_best`` in the settings.

    Raises:
        ValueError: settings do not fit the data (a chunk without examples) or the method; or targets do not.
    """

    def __init__(
        self, task: Task, dataset: Examples | Sequence[Examples], settings: TrainingSettings,
        identity: str = "", evidence: "Callable[[Training], float] | None" = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        method = build_method(settings.method, settings.method_options)
        if not isinstance(method, CentralMethod):
            federated = f"The method {settings.method!r} is federated only"
            raise ValueError(f"{federated}; plain centralised training is 'none'.")
        halving = getattr(method, "halving", None)
        fault = "halving tries the rates of a federated run; leave it out of method_options."
        require(halving is None, fault)
        self.method, task = method, method.prepare(task)
        chunks = in_chunks(dataset, self.method.proportions(settings.chunks), settings.seed)
        check_examples(chunks.data, task.dtype)
        self._chunks = dataclasses.replace(chunks, data=chunks.data.to(settings.device, task.dtype))
        self.shares = chunks.shares
        partition = self.method.partition(task, self.shares, settings)
        trained_on = self.shares if partition.chunks == len(self.shares) else (1.0,)
        super().__init__(
            task, partition, settings.optimiser, settings.optimiser_psi, seed=settings.seed,
            device=settings.device, weight_decays=settings.decays(trained_on), scalars=settings.scalars,
            psi_slices=self.method.psi_slices(task),
        )  # fmt: skip
        self.check(self._chunks.data, "training")
        self.learned = [*self.method.trained_psi(task)]
        self._psi_mask = psi_mask(task, self.learned).to(self.w.device)
        stages = self.method.stages(settings.iterations, chunks.bounds[-1], settings.batch_size)
        self.stages = tuple(Stage(name, end) for name, end in stages.items())
        self.schedule = Schedule(self.shares, settings.iterations, settings.psi_every, self.learns_psi)
        self.best: Best | None = None
        estimates = self.method.estimates or self.scores_chunks
        self._evidence = evidence or (Training.log_marginal_likelihood if estimates else None)
        needs = f"keep_best needs L_ML, which the method {settings.method!r} has not with these chunks"
        ways = "set keep_best to false, give another evidence, or use partitioned networks on two chunks."
        require(not settings.keep_best or self._evidence is not None, f"{needs}; {ways}")
        self._losses = [0.0, 0.0]  # sum over the iterations since the last report, and their number
        self._index = 0  # steps within the iteration
        shared = settings.deciding()
        if settings.may_grow(self.stages):
            del shared["iterations"]
        shared["kinds"] = [type(settings.optimiser).__name__, type(settings.optimiser_psi).__name__]
        shared["evidence"] = getattr(self._evidence, "__name__", None)
        self.agreement = agreement(self.task, self.partition, shared, identity)

    @property
    def total(self) -> int:
        """Iterations of all stages."""
        return self.stages[-1].end

    @property
    def chunks(self) -> tuple[Dataset, ...]:
        """D_1..D_C."""
        return tuple(self.examples(k, k) for k in range(1, 1 + len(self.shares)))

    @property
    def learns_psi(self) -> bool:
        """Whether the method trains any hyperparameter of the task."""
        return bool(self._psi_mask.any())

    @property
    def scores_chunks(self) -> bool:
        """Whether L_ML is defined: as many partitions as chunks, and more than one."""
        return self.partition.chunks == len(self.shares) > 1

    def examples(self, first: int, last: int) -> Dataset:
        """The examples of chunks ``first..last``."""
        return self._chunks.examples(first, last)

    def step(self) -> float:
        """One iteration, as the method has it; the loss of its parameter step in nats.

        Raises:
            TrainingError: the loss is not finite, or the method has diverged.
        """
        iteration, self._index = self.completed + 1, 0
        rng = generator(self.seed, "iteration", iteration)
        loss = math.nan
        for step in self.method.steps(self.schedule, iteration, rng):
            psi_only = step.job.partition is None
            drawn = self._chunks.draw(step.first, step.last, self.settings.batch_size, rng)
            of_batch = self._run(step, Batch(*drawn), iteration)
            loss = loss if psi_only else of_batch
        self._complete(iteration)
        self._losses[0] += loss
        self._losses[1] += 1
        return loss

    def parameter_step(self, k: int, batch: Batch | Examples) -> float:
        """A step of w_k along -log p(batch | w_s^(k), psi) (Eq. 3), for a loop of one's own: one iteration.

        The batch, of any size, must come from chunks 1..k, that of :meth:`psi_step` from chunk k. What is
        returned is its mean negative log-likelihood before the step, in nats.

        Raises:
            ValueError: there is no partition k, or no example.
            TrainingError: see :meth:`step`.
        """
        partitions = self.partition.chunks
        require(1 <= k <= partitions, f"Partitions are numbered 1 to {partitions}, got {k}.")
        self._index = 0
        loss = self._run(Step(Job(subnetwork=k, partition=k), 1, k), self._given(batch), self.completed + 1)
        self._complete(self.completed + 1)
        return loss

    def psi_step(self, k: int, batch: Batch | Examples) -> float:
        """A step of psi along -log p(batch | w_s^(k-1), psi) (Eq. 4), as :meth:`parameter_step`.

        Raises:
            ValueError: there is no chunk k, 2..C, that psi can be trained on, no psi to train, or no example.
            TrainingError: see :meth:`step`.
        """
        method, chunks = f"The method {self.settings.method!r}", len(self.shares)
        require(self.learns_psi, f"{method} trains no hyperparameter of this task.")
        require(chunks > 1, f"{method} has one chunk here; call step() instead.")
        require(2 <= k <= chunks, f"psi is trained on the chunks 2 to {chunks}, got {k}.")
        unseen = min(k - 1, self.partition.chunks)
        return self._run(Step(Job(subnetwork=unseen, psi=True), k, k), self._given(batch), self.completed)

    def log_marginal_likelihood(self) -> float:
        """Estimate of log p(D): the method's, or ``L_ML = sum_k=2..C log p(D_k | w_s^(k-1), psi)`` (Eq. 2).

        In nats, under training's noise; a ValueError if no chunk is scored by a network that has not seen it.
        """
        if self.method.estimates:
            return self.method.evidence(self, self._chunks.data)
        if not self.scores_chunks:
            raise ValueError("L_ML needs partitions trained on two chunks or more; there is one network.")
        total = 0.0
        for k, unseen in enumerate(self.chunks[1:], start=2):
            scores = self.evaluate(unseen, k - 1, dropout=True, purpose=f"L_ML {k}")
            total -= scores["nll"] * len(unseen)
        return total

    def run(
        self, every: int, on_report: Callable[[TrainingReport], None],
        on_step: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        """Train to the end, from wherever the state is; a TrainingError as in :meth:`step`.

        ``on_report`` is called with a report ``every`` so many iterations and at the ends of stages;
        ``on_step`` with the number of every completed iteration, after its report. With ``keep_best`` the
        state is that of the best report when it returns, or raises."""
        require(every >= 1, f"Reports are at least one iteration apart, got {every}.")
        ends, start = {end: name for name, end in self.stages}, time.perf_counter()
        try:
            while self.completed < self.total:
                self.step()
                if (now := self.completed) % every == 0 or now in ends:
                    on_report(self._report(ends.get(now), start))
                    start = time.perf_counter()
                if on_step is not None:
                    on_step(now)
        finally:  # of a run that is stopped, too
            if self.best is not None:
                self.w.copy_(self.best.w)
                self.psi.copy_(self.best.psi)

    def state_dict(self) -> dict[str, Any]:
        best = None if self.best is None else tuple(self.best)
        return {**super().state_dict(), "losses": list(self._losses), "best": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._losses = list(state["losses"])
        self.best = None if state["best"] is None else Best(*state["best"])

    def _report(self, stage: str | None, start: float) -> TrainingReport:
        try:
            lml = None if self._evidence is None else self._evidence(self)
        except (ValueError, RuntimeError) as error:
            raise TrainingError(f"The evidence at iteration {self.completed} fails: {error}") from error
        better = lml is not None and math.isfinite(lml) and (self.best is None or lml > self.best.lml)
        if self.settings.keep_best and lml is not None and better:
            self.best = Best(self.completed, lml, self.w.cpu().clone(), self.psi.cpu().clone())
        loss, steps = self._losses
        self._losses = [0.0, 0.0]
        return TrainingReport(
            iteration=self.completed,
            seconds=time.perf_counter() - start,
            train_loss=loss / steps if steps else None,
            psi={name: told(value) for name, value in self.psi_tensors().items()},
            physical=self.task.physical(self.psi),
            lml=lml,
            stage=stage,
        )

    def _given(self, batch: Batch | Examples) -> Batch:
        """A user's batch, where the model is."""
        if not isinstance(batch, Batch):
            batch = Batch(*as_dataset(batch).batch(slice(None)))
        require(batch.examples, "The batch is empty; a step needs at least one example.")
        return batch.to(self.w.device)

    def _run(self, step: Step, batch: Batch, iteration: int) -> float:
        job, k = step.job, step.job.subnetwork
        point = Point(self.partition.space_of(k), self.partition.subnetwork(self.w, k))
        key = NoiseKey(self.seed, "training", (iteration, self._index))
        noise = Noise(key, self.w.device, self.task.dtype)
        self._index += 1
        with one_sentence(iteration):
            result = gradients(self.task, self.method.loss, job, point, self.psi, batch, noise)
            self._apply(step, result, iteration)
        return result.loss.item()

    def _complete(self, iteration: int) -> None:
        self.completed = iteration
        with one_sentence(iteration):
            self.method.finish(self, self._chunks.data)

    def _apply(self, step: Step, found: Gradients, iteration: int) -> None:
        """Step w_j and psi; a ValueError if a number is not finite, or the method has diverged."""
        if not math.isfinite(found.loss) or (found.psi is not None and not found.psi.isfinite().all()):
            self.method.watch(self.task, self.psi)
            raise ValueError(f"the loss or its gradient is not finite; {self.method.remedy}")
        if found.theta is not None and step.job.partition is not None:
            rate = self.settings.rate(iteration)
            if step.learning_rate is not None:
                rate = step.learning_rate / self.settings.optimiser.learning_rate
            w_j = self.partition.take(found.theta, step.job.partition, step.job.subnetwork)
            self.optimiser.step(step.job.partition - 1, w_j, rate)
        if found.psi is not None:
            self.optimiser_psi.step(0, found.psi * self._psi_mask)
            self.method.watch(self.task, self.psi)
