"""A worker process: runs blocks of clients for a WorkerPool, in memory that it shares with it."""

from __future__ import annotations

import ctypes
import gc
import pickle
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.engines.block import BlockRunner, BlockSum
from fedpart.engines.executor import ClientError
from fedpart.federated.protocol import Protocol

LINE = 64  # bytes: rows of shared memory start at multiples of it, as torch's own tensors do
Load = tuple[Protocol, Sequence[Dataset]]


@dataclass
class Task:
    """A block to run.

    Attributes:
        index: of the block in its round.
        clients: client numbers.
        row: of the shared memory, for the sum.
        round: 1..; epoch: how often w and psi have been published; another number means other values.
    """

    index: int
    clients: list[int]
    row: int
    round: int
    epoch: int


class Shared:
    """Memory that all processes see; it has no name, so that it ends with the last of them.

    Args:
        context: of multiprocessing.
        rows, numbers: row 0 is for w and psi, the others are for sums of blocks; each ``[numbers]``.
        dtype: of the numbers.
        workers: how many.

    Attributes:
        at: client that each worker runs; -1: it has not begun.
    """

    def __init__(
        self, context: BaseContext, rows: int, numbers: int, dtype: torch.dtype, workers: int
    ) -> None:
        self._numbers, self._dtype = numbers, dtype
        self._stride = -(-numbers * dtype.itemsize // LINE) * LINE
        self._bytes: Any = context.RawArray(ctypes.c_byte, rows * self._stride + LINE)
        self.at: Any = context.RawArray(ctypes.c_int64, workers)

    def row(self, index: int) -> Tensor:
        """Row ``index`` as a tensor ``[numbers]``."""
        start = -ctypes.addressof(self._bytes) % LINE + index * self._stride
        return torch.frombuffer(self._bytes, dtype=self._dtype, count=self._numbers, offset=start)


def work(
    connection: Connection, inherited: Sequence[Connection], shared: Shared, number: int, load: Load | bytes
) -> None:
    """Answer every Task with a :class:`BlockSum` without its tensors, or a ClientError, until the pool ends.

    Args:
        connection: to the pool.
        inherited: the pool's own ends of connections, which a fork has copied.
        shared: where w and psi are and sums go.
        number: of this worker.
        load: protocol and shards, pickled if they could not be inherited.
    """
    gc.freeze()  # a fork's copies are not ours to end: they may wait for locks of other threads
    gc.enable()
    for other in inherited:  # or the pool's end would not be seen
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # more do not survive a fork
    protocol, shards = pickle.loads(load) if isinstance(load, bytes) else load
    runner, epoch = BlockRunner(protocol, shards), 0
    size = protocol.partition.space.size
    answer: BlockSum | ClientError | None = None

    def on_client(client: int) -> None:
        shared.at[number] = client

    while True:
        try:
            if answer is not None:
                connection.send(answer)
            task: Task = connection.recv()
        except (EOFError, OSError):
            return
        if task.clients:
            on_client(task.clients[0])
        if task.epoch != epoch:
            state = shared.row(0)
            runner.begin(task.round, state[:size], state[size:])
            epoch = task.epoch
        try:
            answer = _without_tensors(runner.run(task.clients, shared.row(task.row), on_client))
        except ClientError as error:
            error.add_note(traceback.format_exc())  # its cause does not travel
            answer = error


def _without_tensors(found: BlockSum) -> BlockSum:
    total = found.total
    return replace(found, total=None if total is None else replace(total, deltas={}, psi=None))


def with_tensors(found: BlockSum, row: Tensor, bounds: Sequence[int]) -> BlockSum:
    """A worker's answer with its tensors, which are in ``row``; ``bounds`` are those of w_1..w_C."""
    if (total := found.total) is not None:
        total.deltas = {j: row[bounds[j - 1] : bounds[j]] for j in total.weights}
        total.psi = row[bounds[-1] :] if total.psi_weight else None
    return found
