"""Guards of the command line: expected errors become a sentence and an exit status."""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import typer

from fedpart.checks import shown

BAD_INPUT, FAILED = 2, 1
OUTPUTS = {1: "stdout", 2: "stderr"}  # of a process, by descriptor


@contextmanager
def interruptible(remedy: str, folder: Path) -> Iterator[None]:
    """SIGINT and SIGTERM become a sentence that says how to go on, and the customary exit status."""
    from simulations.folders.run_directory import CONFIG
    from simulations.running.recorder import Interrupted

    try:
        yield
    except Interrupted as stop:
        number, after = stop.signal_number, f" after {stop.after}"
    except KeyboardInterrupt:
        number, after = signal.SIGINT, ""
    else:
        return
    begun = any(folder.glob(f"**/{CONFIG}"))  # what is there to continue
    say(f"Stopped{after}; {remedy}" if begun else "Stopped before anything was run.", "yellow")
    raise typer.Exit(128 + number)


def guarded(work: Callable[[], Any], out: Path | None, trust: bool | None = None) -> None:
    """Expected errors become a sentence and a status; ``trust``: whether code that ``out`` names may run."""
    from fedpart import ClientError, TrainingError
    from fedpart.extras import MissingExtra
    from fedpart.registry import trusting
    from fedpart.updates.errors import out_of_memory
    from simulations.config.load import ConfigError
    from simulations.errors import RunError

    folder = out or Path("runs")
    try:
        with nullcontext() if trust is None else trusting(trust):
            work()
    except (ClientError, RunError, TrainingError) as error:
        fail(str(error), FAILED)
    except (ConfigError, MissingExtra) as error:
        fail(str(error), BAD_INPUT)
    except (RuntimeError, MemoryError) as error:
        if (full := out_of_memory(error)) is None:
            raise
        smaller = "use smaller batches, samples, evaluation_samples or data, or set device: cpu"
        kept = "What is finished is kept, and --resume goes on."
        fail(f"There is too little memory ({full}); {smaller}. {kept}", FAILED)
    except OSError as error:
        if isinstance(error, FileExistsError) and error.errno is None:
            fail(str(error), BAD_INPUT)  # a sentence of ours
        if error.filename in OUTPUTS.values() or not _concerns(error, folder):
            raise
        reason = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        fail(
            f"The results cannot be kept in {folder} ({reason}); choose another folder with --out.", BAD_INPUT
        )


@contextmanager
def outputs_guarded() -> Iterator[None]:
    """A standard output or error that cannot be written becomes a sentence; a closed pipe stays click's."""
    for descriptor, name in OUTPUTS.items():
        if (stream := getattr(sys, name)) is not None:
            buffer = io.BufferedWriter(_Output(descriptor, "w", closefd=False))
            named = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=True)
            setattr(sys, name, named)
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename not in OUTPUTS.values():
            raise
        with open(os.devnull, "w") as nowhere:  # what is still in buffers goes there when the process ends
            os.dup2(nowhere.fileno(), 1 if error.filename == "stdout" else 2)
        what = "standard output" if error.filename == "stdout" else "standard error"
        say(
            f"The {what} cannot be written ({error.strerror}); send it to a place with space. What a run has "
            f"finished is kept in its folder, and --resume goes on.",
            "red",
        )
        sys.exit(FAILED)


class _Output(io.FileIO):
    """A process's output whose errors say which one it is."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            error.filename = OUTPUTS[self.fileno()]
            raise


def _concerns(error: OSError, folder: Path) -> bool:
    """Whether the operating system refused the folder, something in it or above it, or has no space left."""
    if not isinstance(error.filename, (str, os.PathLike)):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    folder, place = folder.absolute(), Path(error.filename).absolute()
    return place.is_relative_to(folder) or folder.is_relative_to(place)


def say(text: str, style: str) -> None:
    """A line on the standard error, in a colour."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(shown(text), style=style), soft_wrap=True)


def fail(text: str, status: int) -> NoReturn:
    """End the command with a sentence and an exit status."""
    say(text, "red")
    raise typer.Exit(status)
