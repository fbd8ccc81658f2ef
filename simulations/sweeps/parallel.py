"""The pool: runs in processes of their own, some at a time, each with its own torch threads."""

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedpart import ClientError, TrainingError
from fedpart.training.stopping import caught_signals
from simulations.config.load import Config
from simulations.config.search import OBJECTIVES
from simulations.errors import RunError
from simulations.folders.cell import Cell
from simulations.folders.run_directory import holds_run
from simulations.running.recorder import Interrupted
from simulations.running.run import run_experiment

WATCH = "watch over the main process"  # the name of a thread in every other process

Take = Callable[[Sequence[Any]], Cell | None]
Ended = Callable[[Any, Exception | None, str], None]
Watch = Callable[[Any, Mapping[str, Any]], bool]


class Pruned(RunError):
    """Who watches a run has stopped it."""


def run_in_processes(
    take: Take, jobs: int, ended: Ended, say: Callable[[str], None], watch: Watch | None = None
) -> int | None:
    """Run what ``take`` gives, ``jobs`` at a time, each in a process of its own.

    ``take`` knows what is running; None: nothing may begin now, and where nothing is running there is no
    more. ``ended`` is called with each run that has ended, its error and traceback; what it raises ends all.
    ``watch`` is asked after every evaluation of a run whether :class:`Pruned` ends it.

    Returns:
        The signal that has stopped all, with their checkpoints saved; None: there was none.
    """
    running = dict[Connection, tuple[BaseProcess, Cell]]()
    stopped: list[int] = []
    context = multiprocessing.get_context("forkserver")  # it imports once what a run's first round needs
    context.set_forkserver_preload(["simulations.running.run", "numba"])

    def end() -> None:
        """After their step; those that are told a second time, at once."""
        for process, _ in list(running.values()):
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGTERM)

    def stop() -> None:
        end()
        if len(stopped) == 1:
            say("Stopping the runs in progress (once more to stop at once).")

    with caught_signals(stopped, stop):
        try:
            while True:
                while len(running) < jobs and not stopped:
                    run = take([run for _, run in running.values()])
                    if run is None or stopped:  # while it was chosen
                        break
                    mine, its = context.Pipe()
                    work = (run.config, run.folder, jobs, watch is not None, its)
                    process = context.Process(target=_work, args=work, daemon=False)
                    process.start()
                    its.close()
                    running[mine] = process, run
                if not running:
                    return stopped[0] if stopped else None
                for connection in wait(list(running), timeout=1.0):
                    process, run = running[connection]
                    said = None
                    with suppress(EOFError, OSError):  # stopped; or killed
                        said = connection.recv()
                    if watch is not None and isinstance(said, dict):
                        with suppress(OSError):  # it has died since
                            connection.send(watch(run, said))
                        continue
                    del running[connection]
                    connection.close()
                    process.join()
                    if said is not None or not stopped:
                        ended(run, *(said or (_death(process), "")))
        except BaseException:
            end()
            for connection, (process, _) in running.items():
                connection.close()  # who waits for an answer gets none
                process.join()
            raise


def _work(config: Config, folder: Path, jobs: int, watched: bool, main: Connection) -> None:
    """In the process of a run: ask after each evaluation whether to go on; tell the error and traceback."""
    os.setpgrp()  # the terminal's signals go to the main process, which passes them on once
    threading.Thread(target=_end_with_the_main_process, name=WATCH, daemon=True).start()

    def ask(line: dict[str, Any]) -> None:
        if all(line.get(key) is None for key in OBJECTIVES):
            return
        try:
            main.send(line)
            stops = main.recv()
        except (EOFError, OSError):
            return  # the main process was killed, and this one is about to be ended
        if stops:
            raise Pruned

    told: tuple[Exception | None, str] = None, ""
    watch = ask if watched else None
    try:
        run_experiment(config, folder, resume=holds_run(folder), watch=watch, at_a_time=jobs)
    except (Interrupted, KeyboardInterrupt):
        return  # the main process knows, it has passed the signal on; or it is gone
    except Exception as error:
        told = _portable(error), traceback.format_exc()
    with suppress(OSError):  # the main process was killed
        main.send(told)


def _end_with_the_main_process() -> None:
    """Stop this process in order once the main one is gone: nobody would collect what it finds."""
    if (main := multiprocessing.parent_process()) is not None:
        main.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _portable(error: Exception) -> Exception:
    """The error, or its sentence where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(in_words(error))
    return error


def _death(process: BaseProcess) -> RunError:
    """How a process has ended that did not say so itself."""
    status = process.exitcode or 0
    if status >= 0:
        return RunError(f"Its process ended with status {status}.")
    why = ", perhaps for lack of memory" if status == -signal.SIGKILL else ""
    return RunError(f"Its process was ended by {signal.Signals(-status).name}{why}.")


def in_words(error: Exception) -> str:
    """The error as a sentence; those that are not made for people keep their type."""
    expected = isinstance(error, (ClientError, RunError, TrainingError, ValueError))
    return str(error) if expected else f"{type(error).__name__}: {error}"
