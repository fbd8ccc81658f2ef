"""run_experiment: one run from its configuration to its folder, on either engine."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from fedpart import ClientError, Federation, RoundReport
from fedpart.engines import LocalEngine
from simulations.config import ConfigError, ExperimentConfig
from simulations.experiment import Experiment, RunError, build
from simulations.progress import Progress
from simulations.run_directory import RunDirectory, read_summary, refuse_existing
from simulations.summary import summarise


class Interrupted(Exception):
    """SIGINT or SIGTERM stopped the run after a completed round; a checkpoint is saved."""

    def __init__(self, signal_number: int, round: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after round {round}")
        self.signal_number, self.round = signal_number, round


class Engine(Protocol):
    """What executes rounds until ``rounds`` are complete, and reports each."""

    def run(self, rounds: int, on_round: Callable[[RoundReport], None] | None = None) -> None: ...


MakeEngine = Callable[[Experiment, Federation], AbstractContextManager[Engine]]


def run_experiment(
    config: ExperimentConfig,
    out: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    engine: MakeEngine | None = None,
) -> dict[str, Any]:
    """Run an experiment and write its folder; the summary.

    The seconds of a round, in ``metrics.jsonl`` and in the summary's sum, are those of the engine and of the
    evaluation that follows an evaluation round; checkpoints and the final test are not in them.

    Args:
        config: what to run.
        out: the run's folder.
        resume: continue the run that is in ``out``, from its last checkpoint (or from the start, if it was
            stopped before the first); the final weights are bit-identical to an undisturbed run's. A finished
            run with no rounds left is not touched.
        progress: shows the run; None shows nothing.
        engine: makes the engine; None: the one that ``config.engine`` names.

    Raises:
        ConfigError: the configuration, the data or the checkpoint do not fit; one sentence.
        FileExistsError: ``out`` holds a run and ``resume`` is not set, or another process is running in it.
        ClientError: a client failed; the message names it.
        RunError: the held-out data do not fit the model, or the engine's nodes are not the clients.
        Interrupted: SIGINT or SIGTERM came; the run can be resumed.
    """
    if resume:
        summary = read_summary(out, config.rounds)
        if summary is not None:
            return summary
    else:
        refuse_existing(out)
    if engine is None and config.engine == "flower":
        made = f"`flwr run` has made the run in {out}; continue it with --resume {out}"
        here = "The engine flower is what `flwr run .` records; run here with"
        raise ConfigError(f"{made if resume else here} --engine local (or --engine ray).")
    progress = progress or Progress(quiet=True)
    with _torch_threads(config.threads):
        with _one_sentence():
            experiment = build(config)
        federation = Federation(experiment.protocol)
        run = RunDirectory.reopen(out, config) if resume else RunDirectory.create(out, config)
        try:
            with _one_sentence():
                if resume and run.checkpoint.exists():
                    federation.load(run.checkpoint)
                lines = run.rewind(federation.round)
            with progress.run(config, run.path, federation.round):
                _complete(experiment, federation, run, lines, progress, engine or _engine)
            with _one_sentence(RunError, (ValueError,)):
                summary = summarise(experiment, federation, lines)
            run.finish(federation, summary)
            return summary
        finally:
            run.close()


def _complete(
    experiment: Experiment,
    federation: Federation,
    run: RunDirectory,
    lines: list[dict[str, Any]],
    progress: Progress,
    make_engine: MakeEngine,
) -> None:
    """Rounds until all are done: evaluate, record, checkpoint, each in its turn."""
    config = experiment.config
    stopped: list[int] = []
    saved = federation.round if run.checkpoint.exists() else 0

    def on_round(report: RoundReport) -> None:
        nonlocal saved
        last = report.round >= config.rounds
        if len(experiment.validation) and (report.round % config.evaluate_every == 0 or last):
            start = time.perf_counter()
            with _one_sentence(RunError, (ValueError,)):
                scores = federation.evaluate(experiment.validation)
            report.val_accuracy, report.val_nll = scores.get("accuracy"), scores["nll"]
            report.seconds += time.perf_counter() - start
        lines.append(run.record(report))
        if report.round % config.checkpoint_every == 0 or last:
            run.save(federation)
            saved = report.round
        progress.round(report)
        if stopped and not last:
            if saved < report.round:
                run.save(federation)
            raise Interrupted(stopped[0], report.round)

    try:
        with make_engine(experiment, federation) as engine, _signals(stopped, progress):
            engine.run(config.rounds, on_round)
    except (ClientError, RunError):
        if saved < federation.round == len(lines):  # the failed round has not touched the state
            run.save(federation)
        raise


def _engine(experiment: Experiment, federation: Federation) -> AbstractContextManager[Engine]:
    config = experiment.config
    if config.engine == "local":
        return nullcontext(LocalEngine(federation, experiment.shards))
    from simulations.ray_engine import RayEngine

    engine: AbstractContextManager[Engine] = RayEngine(experiment, federation, workers=config.workers)
    return engine


@contextmanager
def _signals(stopped: list[int], progress: Progress) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run after the round in progress; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stopped:
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt
        stopped.append(number)
        progress.note("Stopping after this round (once more to stop at once).")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _one_sentence(
    becomes: type[Exception] = ConfigError,
    expected: tuple[type[Exception], ...] = (ValueError, TypeError, OSError, ImportError),
) -> Iterator[None]:
    """What does not fit in the user's configuration, data or files becomes an error of one sentence."""
    try:
        yield
    except expected as error:
        raise becomes(str(error) or type(error).__name__) from error


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
