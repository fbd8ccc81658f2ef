"""run_experiment: one run from its configuration to its folder, federated on any engine or centralised."""

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from fedpart import ClientError, Federation, RoundReport, Training, TrainingReport
from fedpart.data.trained_on import trained_on
from fedpart.engines import local_engine
from fedpart.engines.batches import told_apart
from fedpart.federated.report import nothing_learnt
from fedpart.loggers import Loggers, RunInfo
from fedpart.loggers.lines import finite, flat
from fedpart.updates.errors import StepError
from simulations.building.experiment import Experiment, TrainingExperiment, ready
from simulations.building.task import torch_threads
from simulations.config.load import Config
from simulations.errors import ConfigError, RunError, one_sentence
from simulations.folders.contents import HASH, read_summary
from simulations.folders.data_files import listed_data, refuse_changed_data
from simulations.folders.run_directory import RESIDUALS, RunDirectory, refuse_existing
from simulations.results.pictures.run_figures import plot_run
from simulations.results.terminal.progress import Progress
from simulations.running.hostile import attacked
from simulations.running.precision import choose_precision
from simulations.running.recorder import Interrupted, Recorder
from simulations.running.summary import summarise

LEAVING_SECONDS = 60.0  # that a ServerApp which Flower has given up may take to end


class RoundEngine(Protocol):
    """What executes rounds until ``rounds`` are complete, and reports each."""

    workers: int | None  # processes that run clients at the same time; None: not known here

    def run(self, rounds: int, on_round: Callable[[RoundReport], None] | None = None) -> None: ...


MakeEngine = Callable[[Experiment, Federation], AbstractContextManager[RoundEngine]]


def run_experiment(
    config: Config, out: str | Path, *, resume: bool = False, progress: Progress | None = None,
    engine: MakeEngine | None = None, watch: Callable[[dict[str, Any]], None] | None = None,
    at_a_time: int = 1, draw: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Run an experiment and write its folder; the summary.

    A run that is resumed ends with the bits of an undisturbed one. Seconds are those of training and of the
    evaluation that goes with a line. ``watch`` is called with every new line of ``metrics.jsonl``; a RunError
    that it raises ends the run, which can be resumed. ``at_a_time`` is how many runs share the machine.
    """
    if resume:
        summary = read_summary(out, config)
        if summary is not None:
            return summary
    else:
        refuse_existing(out)
    flower = getattr(config, "engine", None) == "flower"
    if engine is None and flower:
        made = f"`flwr run` has made the run in {out}; continue it with --resume {quote(str(out))}"
        here = "The engine flower is what `flwr run .` records; run here with"
        raise ConfigError(f"{made if resume else here} --engine local (or --engine ray).")
    progress = progress or Progress(quiet=True)
    config = choose_precision(config, out)
    with one_sentence():
        loggers = Loggers([entry.model_dump() for entry in config.loggers])
        listed = listed_data(config)
        if resume:
            refuse_changed_data(out, listed)
    making = _starting(config, out) if engine is None else nullcontext(engine)
    with making as make, torch_threads(config.threads):
        with one_sentence():
            experiment, state = ready(config)
        for note in experiment.notes:
            progress.note(note)
        made = None
        if isinstance(experiment, Experiment):  # before there is a folder: an engine may refuse the run
            with one_sentence(ConfigError, (ValueError,)):
                made = make(experiment, state)
            if remark := getattr(made, "remark", ""):
                progress.note(remark)
        if resume:
            run = RunDirectory.reopen(out, config, LEAVING_SECONDS if flower else 0.0)
        else:
            run = RunDirectory.create(out, config, listed)
        with closing(run), closing(loggers):
            with one_sentence():
                run.bind(state)
                if resume and run.has_checkpoint:
                    state.load(run.checkpoint)
                elif resume:
                    progress.note(f"{run.path} has no checkpoint, so the run begins anew.")
                lines = run.rewind(state)
            for note in run.notes:
                progress.note(note)
            with one_sentence(RunError):
                name = f"{run.path.absolute().parent.name}/{run.path.name}"
                loggers.start(RunInfo(run.path, name, flat(config.resolved()), lines))
            recorder = Recorder(run, lines, progress, state, loggers, watch, at_a_time, safe=flower)
            workers = None
            total = state.total if isinstance(state, Training) else config.length
            held_out = {"validation": experiment.validation, "test": experiment.test}
            of_clients = isinstance(experiment, Experiment)
            names = () if experiment.preprocessing is None else experiment.preprocessing.names
            learned, apart = told_apart(state.protocol, experiment.shards) if of_clients else (None, {})
            told = {"inputs": names, "classes": experiment.classes, "clients": of_clients, "learned": learned}
            said = trained_on(experiment.shards, apart | held_out, **told)
            progress.say(f"Trained on: {said}")
            with progress.run(config, run.path, state.completed, total):
                if isinstance(experiment, TrainingExperiment):
                    _iterations(experiment, state, recorder)
                else:
                    workers = _rounds(experiment, state, recorder, made)
                    state.finish()
            kept = {HASH: run.keep(state)}  # first: whatever becomes of the statistics
            with one_sentence(RunError, (ValueError,)):
                summary = summarise(experiment, state, lines, workers) | kept
            if shared := [line["runs_at_a_time"] for line in lines if "runs_at_a_time" in line]:
                summary["runs_at_a_time"] = max(shared)
            loggers.finish(finite(summary))  # first: what is killed from here on is resumed, or has all
            run.finish(summary)
            if draw or loggers.keep:
                loggers.show(draw_pictures(run.path, progress.note))
            return summary


def draw_pictures(folder: Path, note: Callable[[str], None]) -> list[Path]:
    """A finished run's, drawn anew; those of its data are left out where the data are not here."""
    try:
        plot_run(folder, download=False)
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        note(f"A picture is missing, for it cannot be drawn ({str(error).rstrip('.')}).")
    return sorted(folder.glob("*.png"))


def _rounds(
    experiment: Experiment, federation: Federation, recorder: Recorder,
    made: AbstractContextManager[RoundEngine],
) -> int | None:  # fmt: skip
    """Rounds until all are done: evaluate, record, checkpoint, each in its turn; the engine's workers."""
    config = experiment.config

    def on_round(report: RoundReport) -> None:
        last = report.round >= config.rounds
        due = report.round % config.evaluate_every == 0 or last
        if due and experiment.protocol.settings.scored:
            recorder.evaluate(report, experiment.validation_of(report.round), config.evaluation_samples)
        recorder.record(report)
        recorder.completed(last)

    recorder.hurry = getattr(made, "stop", recorder.hurry)
    recorder.begin()
    with recorder.signals(), made as engine:
        try:
            engine.run(config.rounds, on_round)
        except (ClientError, RunError) as error:
            done = recorder.lines[-1]["round"] if recorder.lines else 0
            if federation.round == done:  # the failed round has not touched the state
                recorder.save()
            if recorder.stopped:
                raise Interrupted(recorder.stopped[0], f"round {done}") from error
            raise
        except StepError as error:  # whose state is lost, and not saved
            raise RunError(str(error)) from error
        workers = engine.workers
    if why := nothing_learnt(recorder.lines, config.min_replies):
        raise RunError(why)
    return workers


def _iterations(experiment: TrainingExperiment, training: Training, recorder: Recorder) -> None:
    """Iterations until all are done; what a stage has led to is tested when it ends."""

    def on_report(report: TrainingReport) -> None:
        recorder.evaluate(report, experiment.validation)
        more: dict[str, Any] = {}
        if report.stage is not None and report.iteration < training.total:
            with one_sentence(RunError, (ValueError,)):
                test = training.evaluate(experiment.test) if len(experiment.test) else {}
            more = {"stage": report.stage, "test_accuracy": test.get("accuracy"), "test_nll": test.get("nll")}
        recorder.record(report, **more)

    with recorder.signals():
        every = experiment.config.evaluate_every
        training.run(every, on_report, lambda done: recorder.completed(done >= training.total))


def _starting(config: Config, out: str | Path) -> AbstractContextManager[MakeEngine]:
    """What makes the engine that the configuration names, which starts meanwhile if it takes its time."""
    if getattr(config, "engine", None) != "ray":
        return nullcontext(_local_engine)
    from simulations.ray.engine import starting

    return starting(config, Path(out) / RESIDUALS)


def _local_engine(experiment: Experiment, federation: Federation) -> AbstractContextManager[RoundEngine]:
    config = experiment.config
    execution = config.execution if config.attack is None else attacked(experiment)
    workers = config.processes or 1
    return local_engine(federation, experiment.shards, workers, execution, config.evaluate_every)
