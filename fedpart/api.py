"""federate(): a whole run in one call, on this machine."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor, nn

from fedpart.checks import check_options, check_whole, require
from fedpart.data.dataset import Dataset
from fedpart.data.given import Examples, Shards, as_dataset, is_examples
from fedpart.data.trained_on import trained_on
from fedpart.engines.batches import told_apart
from fedpart.engines.paced import local_engine
from fedpart.federated.best import fallen
from fedpart.federated.federation import Federation
from fedpart.federated.options import FederationOptions
from fedpart.federated.protocol import Protocol
from fedpart.federated.report import RoundReport, nothing_learnt, untaught
from fedpart.federated.settings import FederationSettings
from fedpart.loggers.lines import reports_of
from fedpart.loggers.logged import Printed, logged
from fedpart.task.task import Task
from fedpart.training.files import companion
from fedpart.training.result import Result, as_task, check_shards, held_out, remark_outputs
from fedpart.training.settings import check_names
from fedpart.training.stopping import Stopped, stoppable
from fedpart.updates.stages.personal import parted


def federate(
    task: Task | nn.Module, shards: Sequence[Examples], *, rounds: int = 100,
    validation: Examples | None = None, test: Examples | None = None, evaluate_every: int = 10,
    on_round: Callable[[RoundReport], None] | None = None, checkpoint: str | Path | None = None,
    checkpoint_every: int = 10, resume: bool = False, workers: int = 1, execution: str = "auto",
    progress: bool = False, loggers: Sequence[Any] = (), **settings: Unpack[FederationOptions],
) -> Result[RoundReport]:  # fmt: skip
    """Train ``task`` over clients, on this machine.

    Ctrl-C ends it after the round in progress, which is saved; the result is that of the rounds done.

    Args:
        task: what is learned; a network alone stands for ``Task(network, samples=1)``.
        shards: the clients' data, client i's in ``shards[i]``: each a :class:`Dataset`, ``(inputs, targets)``
            or what else :func:`.as_dataset` takes. Anything with a length and an index will do: what is no
            list or tuple is read one client at a time, when it is in the cohort.
        rounds: to complete.
        validation: held-out data for ``val_accuracy`` and ``val_nll``, every ``evaluate_every`` rounds. With
            ``evaluation="clients"``, a setting, the clients score the network as often: ``client_accuracy``.
        test: data for the result's ``test_accuracy`` and ``test_nll``, scored once, when all is trained;
            with ``evaluation="none"``, a setting, nothing is scored.
        on_round: called with the report of every round.
        checkpoint: a file that is replaced atomically every ``checkpoint_every`` rounds and at the end. With
            ``error_feedback`` a folder beside it, ``.residuals``, belongs to it; with privacy whose noise is
            the system's a file, ``.releases``, counts what was released, also where a checkpoint is lost.
            The reports are kept in the folder ``.logs``, ``metrics.jsonl``.
        resume: continue from ``checkpoint`` if it exists; the final weights are bit-identical to those of an
            undisturbed run (with privacy they are where its randomness is the seed).
        workers: processes that run the clients, see :class:`.LocalEngine`; 1: this one.
            Where workers are spawned, not forked, a script must have ``if __name__ == "__main__":``.
        execution: ``auto``, ``loop``, ``grouped`` or ``fused``, see there too.
        progress: whether lines are printed while it runs, see :class:`.Printed`.
        loggers: what gets the numbers of every round, ``["tensorboard"]``, see :class:`.Loggers`. Their files
            are in a folder beside the checkpoint, ``.logs``; without a checkpoint in a new one in ``runs/``.
        **settings: of :class:`.FederationSettings`, e.g. ``method="partitioned"``,
            ``chunks=(0.7, 0.2, 0.1)``, ``cohort=10``; a mapping stands for a group of them:
            ``local={"learning_rate": 0.05}``, ``server={"name": "sgd", "learning_rate": 1.0}``.

    Raises:
        ValueError: settings, data, checkpoint or loggers do not fit; the message says what to change.
        ImportError: the library of a logger is not installed.
        ClientError: a client failed, for instance because its loss was not finite.
    """
    check_whole("rounds", rounds, 1, "a number of rounds")
    check_whole("evaluate_every", evaluate_every, 1, "a number of rounds")
    check_whole("checkpoint_every", checkpoint_every, 1, "a number of rounds")
    check_options(progress=progress, resume=resume, checkpoint=checkpoint, on_round=on_round)
    task, data = as_task(task), _clients(shards)
    beside = inspect.signature(federate).parameters
    check_names(settings, FederationSettings, without="clients", beside=beside)  # these are the shards
    given: dict[str, Any] = {"cohort": min(10, len(data)), **settings}
    chosen = FederationSettings(clients=len(data), **given)
    federation = Federation(Protocol(task, chosen))
    told = (tell(federation.protocol) for tell in (untaught, parted))
    for note in filter(None, (*federation.task.notes, *told)):
        print(note)
    scored = held_out(federation, validation, "validation")
    tested = held_out(federation, test, "test")
    if isinstance(data, list) and chosen.on_client_error == "fail":
        check_shards(federation, data)
        alone = chosen.evaluation == "clients" and chosen.evaluation_share is None
        bare = [number for number, shard in enumerate(data) if alone and shard.evaluation is None]
        none = f"{len(bare)} clients have no examples to score, first {bare[:3]}"
        require(not bare, f"{none}; give Dataset(..., evaluation=...), or set evaluation_share.")
        remark_outputs(federation, [*data, *(part for part in (scored, tested) if part is not None)])
    if checkpoint is not None:
        federation.keep_in(*(companion(checkpoint, kind, resume) for kind in (".residuals", ".releases")))
    path = federation.resume(checkpoint, resume, data if isinstance(data, list) else [], rounds)
    if progress and isinstance(data, list):
        learned, apart = told_apart(federation.protocol, data)
        print(trained_on(data, {**apart, "validation": scored, "test": tested}, learned=learned))

    def finish(report: RoundReport) -> None:
        last = report.round == rounds
        due = chosen.scored and (last or report.round % evaluate_every == 0)
        if scored is not None and due:
            for name, value in federation.validated(scored, chosen.evaluation_samples).items():
                setattr(report, name, value)
        log(report)
        kept = last or report.round % checkpoint_every == 0
        if path is not None and kept:
            federation.save(path)
        metrics.append(report)
        if on_round is not None:
            on_round(report)
        if stopped and not last:
            if path is not None and not kept:
                federation.save(path)
            raise Stopped

    logs = None if path is None else companion(path, ".logs", resume)
    printed = Printed(rounds, evaluate_every) if progress else None
    with (
        local_engine(federation, data, workers, execution, evaluate_every) as engine,
        logged(loggers, logs, chosen, federation.round, printed) as log,
    ):
        if engine.remark:
            print(engine.remark)
        metrics = reports_of(RoundReport, log.kept)
        with stoppable("round", path) as stopped:
            engine.run(rounds, finish)
        federation.finish()
        looked_at = tested if chosen.scored else None
        result = Result(federation, metrics, looked_at, chosen.evaluation_samples)
        log.scores, log.complete = result.scores, federation.round >= rounds
    if why := nothing_learnt([vars(report) for report in metrics], chosen.min_replies):
        warnings.warn(f"{why}; see result.metrics[-1].skipped.", RuntimeWarning, stacklevel=2)
    lmls = ((report.round, report.lml) for report in metrics if (report.candidates or 1) == 1)
    if sentence := fallen(lmls, chosen.keep_best is not None or federation.race is not None):
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    return result


def _clients(shards: Any) -> Sequence[Dataset]:
    """The data of each client, unless they are those of one, or cannot be read by a client's number."""
    several = isinstance(shards, (list, tuple))
    tensors = several and any(isinstance(shard, (Tensor, np.ndarray)) for shard in shards)
    alone = tensors or (not several and is_examples(shards))
    numbered = hasattr(shards, "__len__") and hasattr(shards, "__getitem__")
    kind = f"{type(shards).__name__}{' of tensors' if tensors else ''}"
    wanted = "The clients' data are a list with the examples of each client"
    write = "write federate(task, [data_of_client_0, data_of_client_1, ...])."
    fits = numbered and not alone and not isinstance(shards, Mapping)
    require(fits, f"{wanted}, got a {kind}; {write}")
    return [as_dataset(shard) for shard in shards] if several else Shards(shards)
