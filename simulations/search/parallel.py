"""Trials in several processes at once; the study stays with the main one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from simulations.config.load import Config
from simulations.folders.run_directory import holds_run
from simulations.results.words import counted
from simulations.running.run import run_experiment
from simulations.running.signals import Interrupted, caught_signals
from simulations.search.attempt import Attempt, Pruned
from simulations.sweeps.parallel import begin, death, end, fresh_processes, portable

Ended = Callable[[Attempt, Exception | None], None]


def run_in_processes(
    attempts: Iterator[Attempt], jobs: int, ended: Ended, say: Callable[[str], None]
) -> None:
    """Run trials, ``jobs`` at a time; the next one is asked for when there is room for it.

    Args:
        ended: called with each that has ended, and its error; what it raises ends all.
        say: tells a person.

    Raises:
        Interrupted: SIGINT or SIGTERM came; the runs in progress have saved their checkpoints.
    """
    context, running = fresh_processes(__name__), dict[Connection, tuple[BaseProcess, Attempt]]()
    stopped: list[int] = []
    done = 0

    def end_all() -> None:
        end(process for process, _ in running.values())

    def stop() -> None:
        if len(stopped) == 1:
            say("Stopping the runs in progress (once more to stop at once).")
        end_all()  # the second one ends them at once

    with caught_signals(stopped, stop):
        try:
            while True:
                while len(running) < jobs and not stopped and (attempt := next(attempts, None)) is not None:
                    if (before := attempt.caught_up()) is not None:
                        ended(attempt, before)
                        continue
                    mine, its = context.Pipe()
                    work = (attempt.config, attempt.folder, attempt.objective, its)
                    process = context.Process(target=_work, args=work, daemon=False)
                    process.start()
                    its.close()
                    running[mine] = process, attempt
                if not running:
                    break
                for connection in wait(list(running), timeout=1.0):
                    process, attempt = running[connection]
                    said = _said(connection)
                    if isinstance(said, dict):  # an evaluation
                        with suppress(OSError):  # it has died since
                            connection.send(attempt.stops(said))
                        continue
                    del running[connection]
                    connection.close()
                    process.join()
                    if said is not None or not stopped:
                        ended(attempt, death(process) if said is None else said[0])
                        done += 1
        except BaseException:
            end_all()
            raise
    if stopped:
        raise Interrupted(stopped[0], counted(done, "trial"))


def _said(connection: Connection) -> Any:
    """The next word of a process; None: it has ended."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _work(config: Config, folder: Path, objective: str, main: Connection) -> None:
    """In the process of a trial: run it, ask after each evaluation whether to stop, and tell how it ended."""
    begin()

    def watch(line: dict[str, Any]) -> None:
        if line.get(objective) is None:
            return
        try:
            main.send({key: line[key] for key in (config.clock.name, objective)})
            stops = main.recv()
        except (EOFError, OSError):
            return  # the main process was killed, and this one is about to be ended
        if stops:
            raise Pruned("The pruner has stopped the run.")

    error: Exception | None = None
    try:
        run_experiment(config, folder, resume=holds_run(folder), watch=watch)
    except (Interrupted, KeyboardInterrupt):
        return  # the main process knows, it has passed the signal on; or it is gone
    except Exception as found:
        error = portable(found)
    with suppress(OSError):  # the main process was killed
        main.send((error,))
