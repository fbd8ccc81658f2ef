"""Cells in several processes at once, each with its own torch threads."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from simulations.errors import RunError
from simulations.folders.cell import Cell
from simulations.running.run import run_experiment
from simulations.running.signals import Interrupted, caught_signals
from simulations.sweeps.tally import Tally, in_words

WATCH = "watch over the main process"
"""Name of a thread in every other process."""


def complete_in_processes(cells: Sequence[Cell], jobs: int, tally: Tally) -> None:
    """Run unfinished cells in this order, ``jobs`` at a time; ``tally`` counts them, and says how it goes on.

    Raises:
        Interrupted: SIGINT or SIGTERM came; the runs in progress have saved their checkpoints.
        Exception: of a cell, where the others would fare no better (:meth:`.Tally.ends_all`); the
            runs in progress have been stopped likewise.
    """
    context, waiting, running = fresh_processes(), list(cells), dict[Connection, tuple[BaseProcess, Cell]]()
    stopped: list[int] = []
    ending: Exception | None = None

    def stop() -> None:
        if len(stopped) == 1:
            tally.say("Stopping the runs in progress (once more to stop at once).")
        end(process for process, _ in running.values())  # the second one ends them at once

    with caught_signals(stopped, stop):
        try:
            while running or (waiting and not stopped):
                while len(running) < jobs and not stopped:
                    if (cell := _next(waiting, [cell for _, cell in running.values()])) is None:
                        break
                    waiting.remove(cell)
                    receiver, sender = context.Pipe(duplex=False)
                    shared = min(jobs, len(cells))
                    process = context.Process(target=_work, args=(cell, shared, sender), daemon=False)
                    process.start()
                    sender.close()
                    running[receiver] = (process, cell)
                for receiver in wait(list(running), timeout=1.0):
                    process, cell = running.pop(receiver)
                    error, trace = _answer(receiver, process)
                    if error is None:
                        tally.finished(cell)
                    elif stopped or ending is not None:
                        continue
                    elif tally.ends_all(error):
                        ending = error
                        waiting.clear()
                        end(process for process, _ in running.values())
                    else:
                        tally.failed(cell, error, trace)
        except BaseException:
            end(process for process, _ in running.values())
            raise
    if ending is not None:
        raise ending
    if stopped:
        raise Interrupted(stopped[0], f"{tally.done} of {len(cells)} runs")


def _next(waiting: Sequence[Cell], running: Sequence[Cell]) -> Cell | None:
    """The first that may run: one that takes its psi from an earlier one waits until that is done."""
    unfinished = {cell.folder.absolute() for cell in running}
    for cell in waiting:
        if cell.config.psi_from is None or Path(cell.config.psi_from).absolute() not in unfinished:
            return cell
        unfinished.add(cell.folder.absolute())
    return None


def fresh_processes(*imported: str) -> ForkServerContext:
    """What starts them: a server process that has imported torch once, and what else a run's first round
    imports, and forks into a fresh process each time; ``imported``: more that these need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["simulations.running.run", "numba", *imported])
    return context


def begin() -> None:
    """First in such a process: it ends with the main one, in order."""
    os.setpgrp()  # the terminal's signals go to the main process, which passes them on once
    threading.Thread(target=_end_with_the_main_process, name=WATCH, daemon=True).start()


def _work(cell: Cell, at_a_time: int, answer: Connection) -> None:
    """In the process of a cell: run it and tell how it ended: (error or None, traceback)."""
    begin()
    try:
        run_experiment(cell.config, cell.folder, resume=cell.state() != "new", at_a_time=at_a_time)
        found: tuple[Exception | None, str] = None, ""
    except (Interrupted, KeyboardInterrupt):
        return  # the main process knows, it has passed the signal on; or it is gone
    except Exception as error:
        found = portable(error), traceback.format_exc()
    with suppress(BrokenPipeError):  # the main process was killed
        answer.send(found)


def _end_with_the_main_process() -> None:
    """Stop this process in order once the main one is gone: nobody would collect what it finds."""
    if (main := multiprocessing.parent_process()) is not None:
        main.join()
        os.kill(os.getpid(), signal.SIGTERM)


def portable(error: Exception) -> Exception:
    """The error, or its sentence where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(in_words(error))
    return error


def _answer(receiver: Connection, process: BaseProcess) -> tuple[Exception | None, str]:
    found: tuple[Exception | None, str] | None = None
    with receiver, suppress(EOFError):  # stopped; or killed
        found = receiver.recv()
    process.join()
    return (death(process), "") if found is None else found


def death(process: BaseProcess) -> RunError:
    """How a process has ended that did not say so itself."""
    status = process.exitcode or 0
    if status >= 0:
        return RunError(f"Its process ended with status {status}.")
    why = ", perhaps for lack of memory" if status == -signal.SIGKILL else ""
    return RunError(f"Its process was ended by {signal.Signals(-status).name}{why}.")


def end(processes: Iterable[BaseProcess]) -> None:
    """End the runs in progress after their step; those that are told a second time, at once."""
    for process in list(processes):
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGTERM)
