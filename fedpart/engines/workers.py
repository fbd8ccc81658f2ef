"""WorkerPool: blocks of a cohort on several processes, which share w, psi and the sums."""

import gc
import multiprocessing
import pickle
import signal
import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedpart.data.dataset import Dataset
from fedpart.engines.worker import Block, Shared, copied, in_memory, places_of, work
from fedpart.federated.cohorts import CohortSum, blocks, sum_updates
from fedpart.federated.protocol import Protocol
from fedpart.updates.errors import ClientError, skipped
from fedpart.updates.update import OfAll, Round, Update

DEATHS = 3  # a client during which its process dies this often has failed


@dataclass(eq=False)
class _Worker:
    number: int
    process: BaseProcess
    connection: Connection


class WorkerPool:
    """Runs blocks of clients on worker processes, which start when they are first needed.

    Blocks are handed out in order, to whoever is free, and their sums added in order: the result has the bits
    of :class:`.Loop`. Only small things travel through pipes: w and psi are written once per round into
    memory that all processes see, and so is the sum of each block, into one of a few places. A worker that
    dies is replaced, and its block runs again.

    On Linux without an accelerator, workers are forked: the shards, whatever they are, are this process's own
    pages, and nothing has to be pickled. Elsewhere they are spawned, each with a pickled copy of task and
    shards. There are never more workers than blocks."""

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset], workers: int) -> None:
        self.protocol, self.shards = protocol, shards
        self.workers = min(workers, len(blocks(range(protocol.settings.cohort))))
        # Sums under way, or done before their turn: so none waits while others take up to twice as long.
        self._places = self.workers + (self.workers + 1) // 2
        # Threads of Apple's libraries, and of autograd where there is a device, do not survive a fork.
        forks = sys.platform == "linux" and not torch.accelerator.is_available()
        self._context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self._parts = places_of(protocol)
        numbers = max(place.stop for place in self._parts.values())
        self._shared = Shared(self._context, 1 + self._places, numbers, protocol.task.dtype, self.workers)
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, Block]] = {}
        self._epoch = 0

    def close(self) -> None:
        """End the workers; they start anew when they are needed."""
        workers = self._all()
        self._idle, self._busy = [], {}
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.connection.close()

    def sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        """See :meth:`.Execution.sum`."""
        self._epoch += 1
        values = [round.w, round.psi, *(() if round.variates is None else (round.variates,))]
        torch.cat(values, out=self._shared.row(0)[: sum(map(len, values))])
        of_all, waiting, nothing = round.of_all, deque[Block](), torch.empty(0)
        start = replace(round, w=nothing, psi=nothing, variates=None, of_all=None)
        for index, part in enumerate(blocks(cohort, single=of_all is not None)):
            mine = start if round.kept is None else replace(start, kept=round.kept.of(part))
            waiting.append(Block(index, list(part), mine, self._epoch))
        try:
            return self._sum(waiting, of_all, cohort)
        except BaseException:
            self.close()  # what is under way is of no use, and must not write into shared memory later
            raise

    def _sum(self, waiting: deque[Block], of_all: OfAll | None, cohort: Sequence[int]) -> CohortSum:
        summed, total = CohortSum(cohort=[*cohort]), None
        done: dict[int, tuple[Block, CohortSum | Exception]] = {}
        free, deaths = deque(range(1, 1 + self._places)), Counter[int]()
        kept: list[Update] = []
        for index in range(len(waiting)):
            while index not in done:
                while waiting and free and len(self._busy) < self.workers:
                    block = waiting.popleft()
                    block.row = free.popleft()
                    self._hand_out(self._idle.pop() if self._idle else self._start(), block)
                ready = wait(list(self._busy))
                for connection in [other for other in self._busy if other in ready]:
                    worker, block = self._busy.pop(connection)
                    try:
                        done[block.index] = block, connection.recv()
                    except (EOFError, OSError):
                        summed.skipped += self._lost(worker, block, deaths)
                        self._hand_out(self._start(), block)
                    else:
                        self._idle.append(worker)
            block, answer = done.pop(index)
            if isinstance(answer, Exception):
                raise answer
            summed.upload_bytes += answer.upload_bytes
            summed.skipped += answer.skipped
            summed.norms |= answer.norms
            if answer.total is not None:
                update = in_memory(answer.total, self._shared.row(block.row), self._parts)
                if of_all is not None:
                    kept.append(copied(update, None))
                else:
                    total = sum_updates((total, copied(update, total)))
            free.append(block.row)
        summed.total = total if of_all is None else of_all(kept)
        summed.skipped.sort(key=lambda skip: skip["client"])
        return summed

    def _hand_out(self, worker: _Worker, block: Block) -> None:
        """Give a block to an idle worker, or to a new one if it has died meanwhile."""
        try:
            worker.connection.send(block)
        except OSError:
            self._bury(worker)
            worker = self._start()
            worker.connection.send(block)
        self._busy[worker.connection] = worker, block

    def _lost(self, worker: _Worker, block: Block, deaths: Counter[int]) -> list[dict[str, Any]]:
        """After a death: the client that is to blame, if it is skipped now, as a report lists it."""
        status = self._bury(worker)
        client = int(self._shared.at[worker.number])
        if client < 0:
            ended = f"A worker process ended before it ran a client of round {block.start.number} ({status})"
            raise ClientError(f"{ended}; use one worker.")
        deaths[client] += 1
        if deaths[client] < DEATHS:
            return []
        died = f"its process died {DEATHS} times ({status})"
        reason = f"Client {client} failed in round {block.start.number}: {died}"
        error = ClientError(reason)
        if self.protocol.settings.on_client_error == "fail":
            raise error
        block.clients.remove(client)
        return [skipped(client, error)]

    def _start(self) -> _Worker:
        number = min(set(range(self.workers)) - {worker.number for worker in self._all()})
        self._shared.at[number] = -1
        mine, its = self._context.Pipe()
        forks = self._context.get_start_method() == "fork"
        inherited = [mine, *(worker.connection for worker in self._all())] if forks else []
        load = (self.protocol, self.shards) if forks else self._pickled()
        arguments = (its, inherited, self._shared, number, load)
        process = self._context.Process(target=work, args=arguments, daemon=True, name=f"fedpart-{number}")
        collects = gc.isenabled()
        gc.disable()  # see work(): not in the child before it is ready
        try:
            process.start()
        finally:
            if collects:
                gc.enable()
        its.close()
        return _Worker(number, process, mine)

    def _pickled(self) -> bytes:
        try:
            return pickle.dumps((self.protocol, self.shards))
        except Exception as error:  # whatever the pickling of foreign objects raises
            fault = f"Task and shards cannot be sent to worker processes ({error})"
            remedy = "define what they consist of at the top level of a module, or use workers=1"
            raise ValueError(f"{fault}; {remedy}.") from error

    def _all(self) -> list[_Worker]:
        return [*self._idle, *(worker for worker, _ in self._busy.values())]

    @staticmethod
    def _bury(worker: _Worker) -> str:
        """Wait for the end of a process that has died; how it ended."""
        worker.connection.close()
        worker.process.join(timeout=5)
        worker.process.kill()
        worker.process.join()
        code = worker.process.exitcode or 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
