"""fit(): centralised training with learned hyperparameters in one call."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from fedpart.centralised.settings import TrainingError, TrainingOptions, TrainingReport, TrainingSettings
from fedpart.centralised.training import Training
from fedpart.checks import check_options, check_whole, require
from fedpart.data.given import Examples
from fedpart.data.splitting.parts import given_chunks
from fedpart.loggers.lines import reports_of
from fedpart.loggers.logged import Printed, logged
from fedpart.methods.partitioned import Partitioned
from fedpart.task.task import Task
from fedpart.training.files import companion
from fedpart.training.result import Result, as_task, held_out, remark_outputs
from fedpart.training.settings import check_names
from fedpart.training.stopping import Stopped, stoppable

__all__ = ["Training", "TrainingError", "TrainingReport", "TrainingSettings", "fit"]


def fit(
    task: Task | nn.Module, dataset: Examples | Sequence[Examples], *, validation: Examples | None = None,
    test: Examples | None = None, evaluate_every: int = 100,
    on_report: Callable[[TrainingReport], None] | None = None, checkpoint: str | Path | None = None,
    resume: bool = False, progress: bool = False, loggers: Sequence[Any] = (),
    **settings: Unpack[TrainingOptions],
) -> Result[TrainingReport]:  # fmt: skip
    """Train ``task`` on data in one place, with its hyperparameters, in one run.

    Ctrl-C ends it after the iteration in progress, which is saved; the result is as far as it has come.

    Args:
        task: what is learned; a network alone stands for ``Task(network, samples=1)``.
        dataset: a :class:`Dataset` or ``(inputs, targets)``, divided at random into chunks; or a list of C of
            them, the chunks themselves, whose sizes take the place of ``chunks=``.
        validation: held-out data for ``val_accuracy`` and ``val_nll``; nothing is trained on it.
        test: data for the result's ``test_accuracy`` and ``test_nll``, scored once, when all is trained.
        evaluate_every: iterations between reports.
        on_report: called with each report.
        checkpoint: a file that is replaced atomically at every report. The reports are kept in a folder
            beside it, ``.logs``.
        resume: continue from ``checkpoint`` if it exists; the final weights are bit-identical to those of an
            undisturbed run.
        progress, loggers: see :func:`.federate`; they get every report.
        **settings: of :class:`.TrainingSettings`, e.g. ``iterations=2000``,
            ``chunks=(0.8, 0.1, 0.1)``; a mapping stands for a group of them:
            ``optimiser={"name": "sgd", "momentum": 0.9}``.

    Returns:
        The final state and all reports. With ``keep_best`` the state is that of the best report,
        ``result.state.best``, which need not be the last.

    Raises:
        ValueError: settings, data, checkpoint or loggers do not fit; the message says what to change.
        ImportError: the library of a logger is not installed.
        TrainingError: the loss is not finite, or the method has diverged.
    """
    check_whole("evaluate_every", evaluate_every, 1, "a number of iterations")
    check_options(progress=progress, resume=resume, checkpoint=checkpoint, on_report=on_report)
    check_names(settings, TrainingSettings, beside=inspect.signature(fit).parameters)
    if (chunks := given_chunks(dataset)) is not None:
        settings.setdefault("chunks", (1 / len(chunks),) * len(chunks))  # how many; their sizes decide
    options: dict[str, Any] = {**settings}
    training = Training(as_task(task), chunks or dataset, TrainingSettings(**options))
    check_psi(training)
    scored = held_out(training, validation, "validation")
    tested = held_out(training, test, "test")
    data = training.examples(1, len(training.shares))
    for note in training.task.notes:
        print(note)
    remark_outputs(training, [data, *(part for part in (scored, tested) if part is not None)])
    path = training.resume(checkpoint, resume, [data], training.total)

    def report(found: TrainingReport) -> None:
        if scored is not None:
            scores = training.evaluate(scored)
            found.val_accuracy, found.val_nll = scores.get("accuracy"), scores["nll"]
        metrics.append(found)
        log(found)
        if path is not None:
            training.save(path)
        if on_report is not None:
            on_report(found)

    def step(iteration: int) -> None:
        if stopped and iteration < training.total:
            if path is not None:
                training.save(path)
            raise Stopped

    logs = None if path is None else companion(path, ".logs", resume)
    printed = Printed(training.total, evaluate_every) if progress else None
    with logged(loggers, logs, training.settings, training.completed, printed) as log:
        metrics, ends = reports_of(TrainingReport, log.kept), {end: name for name, end in training.stages}
        for before in metrics:
            before.stage = ends.get(before.iteration)
        with stoppable("iteration", path) as stopped:
            training.run(evaluate_every, report, step)
        result = Result(training, metrics, tested)
        log.scores, log.complete = result.scores, training.completed >= training.total
    return result


def check_psi(training: Training) -> None:
    """Refuse settings under which a method that learns psi would never step it."""
    settings = training.settings
    if not training.learns_psi:
        return
    alone = isinstance(training.method, Partitioned) and len(training.shares) == 1
    learns = f"The method {settings.method!r} learns hyperparameters on the second chunk and later ones"
    require(not alone, f"{learns}, but there is one; give two chunks or more, or use method: none.")
    every, iterations = settings.psi_every, settings.iterations
    never = f"psi_every is {every}, but there are {iterations} iterations, so that psi would never be stepped"
    require(every <= iterations, f"{never}; lower psi_every, or use method: none.")
