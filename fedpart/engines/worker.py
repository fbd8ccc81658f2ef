"""A worker process: runs blocks of clients for a WorkerPool, in memory that it shares with it."""

import ctypes
import gc
import pickle
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, starmap
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.engines.executor import Executor
from fedpart.federated.cohorts import CohortSum, sum_updates, term
from fedpart.federated.protocol import Protocol
from fedpart.updates.update import PSI, Round, Update, known

LINE = 64  # bytes: rows of shared memory start at multiples of it, as torch's own tensors do
Load = tuple[Protocol, Sequence[Dataset]]


@dataclass
class Block:
    """A block of a cohort to run."""

    index: int  # in its round
    clients: list[int]
    start: Round  # without the values, which are in shared memory
    epoch: int  # how often w and psi have been published; another number means other values
    row: int = 0  # of the shared memory, for the sum


class Shared:
    """Memory that all processes see; it has no name, so that it ends with the last of them.

    ``at`` has the client that each worker runs; -1: it has not begun."""

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
    """Answer every Block with its sum, tensors in shared memory, or an error, until the pool ends.

    ``inherited`` are the pool's own ends of connections, which a fork has copied; ``load`` is pickled where
    it could not be inherited."""
    gc.freeze()  # a fork's copies are not ours to end: they may wait for locks of other threads
    gc.enable()
    for other in inherited:  # or the pool's end would not be seen
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # more do not survive a fork
    protocol, shards = pickle.loads(load) if isinstance(load, bytes) else load
    executor, places, epoch = Executor(protocol), places_of(protocol), 0
    ends = places[PSI].start, places[PSI].stop
    w, psi, beside = torch.tensor_split(shared.row(0), ends)
    variates = beside if protocol.settings.combination.sends else None
    round = Round(0, w, psi)
    answer: CohortSum | Exception | None = None

    def of_client(client: int) -> Update | None:
        shared.at[number] = client
        return term(protocol, round, partial(executor.answer, round, shards), summed, client)

    while True:
        try:
            if answer is not None:
                connection.send(answer)
            block: Block = connection.recv()
        except (EOFError, OSError):
            return
        if block.epoch != epoch:
            round, epoch = replace(block.start, w=w, psi=psi, variates=variates), block.epoch
        elif round.kept is not None and block.start.kept is not None:
            round.kept.versions.update(block.start.kept.versions)
        summed = CohortSum()
        try:
            total = sum_updates(map(of_client, block.clients))
            summed.total = None if total is None else _moved(total, shared.row(block.row), places)
            del total  # or it would live on while the next block is summed
            summed.norms = {**known(summed.norms)}
            answer = summed
        except Exception as error:  # a client's, or there is no memory
            error.add_note(traceback.format_exc())  # its cause does not travel
            answer = error


def places_of(protocol: Protocol) -> dict[int, slice]:
    """Where each part of an update lies in a row: cells and psi, and what is averaged beside the cells."""
    cells, sees = protocol.partition.cells, protocol.settings.combination.sees
    parts = [*range(1, len(cells)), PSI, *(range(-1, -len(cells), -1) if sees else ())]
    after = cells[-1] + protocol.task.psi_space.size
    ends = [*cells, *(after + end for end in cells)]
    return dict(zip(parts, starmap(slice, pairwise(ends)), strict=False))


def _moved(total: Update, row: Tensor, places: Mapping[int, slice]) -> Update:
    """A sum without its tensors, which are written into ``row``."""
    for part, tensor in total.parts.items():
        row[places[part]].copy_(tensor)
    return replace(total, parts={})


def in_memory(total: Update, row: Tensor, places: Mapping[int, slice]) -> Update:
    """A worker's sum with its tensors, which are in ``row``; ``places``: see :func:`places_of`."""
    return replace(total, parts={part: row[places[part]] for part in total.weights})


def copied(update: Update, total: Update | None) -> Update:
    """With copies of the tensors that :meth:`.Update.add` of ``total`` would take over: they are borrowed."""
    held = {} if total is None else total.parts
    parts = {part: tensor if part in held else tensor.clone() for part, tensor in update.parts.items()}
    return replace(update, parts=parts)
