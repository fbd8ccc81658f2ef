"""SIGINT and SIGTERM, which let a run end in order."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """SIGINT or SIGTERM stopped the run; a checkpoint is saved."""

    def __init__(self, signal_number: int, after: str) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after {after}")
        self.signal_number, self.after = signal_number, after


@contextmanager
def caught_signals(came: list[int], then: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Note SIGINT and SIGTERM instead of ending by them; in other threads than the main one do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        then()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
