"""Ctrl-C in a call that trains: the step in progress is finished and saved."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Stopped(Exception):
    """The user wants no further step; what was done is saved."""


@contextmanager
def stoppable(clock: str, checkpoint: Path | None) -> Iterator[list[int]]:
    """Within this context the first SIGINT is noted in what it gives, and told in a line; a second one is a
    KeyboardInterrupt. :class:`Stopped` ends the context, and no more.

    Other threads than the main one, and programs that handle SIGINT themselves, see nothing of it.
    """
    came, kept = list[int](), "the result has what was learned until then"
    if checkpoint is not None:
        kept = f"it is saved in {checkpoint}, and resume=True goes on"
    text = f"Stopping after this {clock}; {kept}."

    def note(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        with suppress(RuntimeError):  # in the middle of a line
            print(f"\n{text} Once more stops at once.", file=sys.stderr, flush=True)

    before = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread() and before is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        with suppress(Stopped):
            yield came
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
