"""Signals in a call that trains: the step in progress is finished and saved."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


class Stopped(Exception):
    """The user wants no further step; what was done is saved."""


@contextmanager
def caught_signals(
    came: list[int],
    then: Callable[[], None] = lambda: None,
    numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
) -> Iterator[None]:
    """Note signals instead of ending by them; in other threads than the main one do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        came.append(number)
        with suppress(RuntimeError):  # in the middle of a write to what it writes to
            then()

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stoppable(clock: str, checkpoint: Path | None) -> Iterator[list[int]]:
    """Within this context the first SIGINT is noted in what it gives, and told in a line; a second one is a
    KeyboardInterrupt. :class:`Stopped` ends the context, and no more. Programs that handle SIGINT themselves
    see nothing of it."""
    came, kept = list[int](), "the result has what was learned until then"
    if checkpoint is not None:
        kept = f"it is saved in {checkpoint}, and resume=True goes on"
    text = f"\nStopping after this {clock}; {kept}. Once more stops at once."

    def told() -> None:
        if len(came) > 1:
            raise KeyboardInterrupt
        print(text, file=sys.stderr, flush=True)

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with suppress(Stopped), caught_signals(came, told, [signal.SIGINT] if ours else []):
        yield came
