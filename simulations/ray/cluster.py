"""Joining a Ray cluster; one that is started here is out of reach of signals to this process's group."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import ray

_own = threading.local()  # ``group``: the processes that this thread starts leave the group of this one


def join(address: str | None, cores: int | None) -> None:
    """Connect this process to the cluster at ``address``; None: to one that is started here."""
    of_ours = {"num_cpus": cores, "include_dashboard": False} if address is None else {}
    host, colon, port = (address or "").rpartition(":")
    if colon and "/" not in host:  # where nothing listens, Ray itself would try for minutes
        socket.create_connection((host.strip("[]"), port), timeout=10.0).close()
    with _out_of_reach():
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **of_ours)


def take_signals_back() -> None:
    """In the main thread, after :func:`join` in another: Ray has put a handler of its own below Python's."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _out_of_reach() -> Iterator[None]:
    """Around ``ray.init``: a signal to the group ends this process, which ends the cluster."""
    handler = signal.getsignal(signal.SIGTERM)
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    _own.group = True
    try:
        yield
    finally:
        _own.group = False
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has set one that exits
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def _leave_group() -> None:
    """In a process that Ray has forked and that becomes one of its own."""
    if getattr(_own, "group", False):
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # by which Ray ends it


if sys.platform == "linux":  # where they end with this process by themselves; elsewhere Ray ends their group
    os.register_at_fork(after_in_child=_leave_group)
