"""Grouped execution: a cohort's jobs computed together, by kind, instead of client after client."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.engines.alike import Alike, NotTogether
from fedpart.engines.batches import count_learned, local_batches
from fedpart.engines.executor import Executor
from fedpart.engines.local import EXECUTIONS
from fedpart.engines.stack import ClientJob, Stack
from fedpart.federated.cohorts import CohortSum, sum_cohort
from fedpart.federated.protocol import Protocol
from fedpart.methods.base import FederatedMethod, Method
from fedpart.partition.inspection import ties_examples
from fedpart.partition.sharing import Penalised
from fedpart.task.gradients import Job
from fedpart.task.looking.values import is_power_of_two
from fedpart.trees import joined
from fedpart.updates.errors import ClientError, blamed, out_of_memory
from fedpart.updates.update import PSI, Round, Update

Result = TypeVar("Result")

# Rows (jobs x examples x S) of one forward pass: their activations stay in a CPU's cache, or fill a GPU.
ROWS_CPU, ROWS_GPU = 256, 8192
# Numbers of the networks that are stacked at once; gradients, changes and copies take five times as many.
NUMBERS_CPU, NUMBERS_GPU = 2**25, 2**28


@EXECUTIONS.register("grouped")
class GroupedRunner:
    """Client-side computation (Eq. 25 and 26) of many clients at once; see :class:`.Stack`.

    Every (client, job) sees the examples and the noise that the loop over clients gives it, so updates agree
    with those of :class:`.Executor` to rounding. Batches are padded with examples of weight 0: a loss of your
    own heeds ``batch.weights``. ``rows`` (jobs x examples x S) bound the memory of a pass's activations; a
    job of more is computed alone."""

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset], rows: int | None = None) -> None:
        loop, method = "use execution: loop, or several workers.", protocol.settings.method
        together = "Clients that are computed together have one"
        require(rows is None or rows >= 1, f"The number of rows computed at once is at least 1, got {rows}.")
        sizes = f"{together} network, but there are architectures; leave architectures out, or {loop}"
        require(protocol.settings.architectures is None, sizes)
        apart = f"{together} loss, but the method {method!r} gives each its own; {loop}"
        require(type(protocol.method).objective is FederatedMethod.objective, apart)
        mine = f"{together} start, but with {method!r} each has weights of its own; {loop}"
        require(not protocol.settings.combination.personal, mine)
        fault = "Clients cannot be computed together in channels-last memory format"
        remedy = "set channels_last to false, or compute them one after another"
        require(not protocol.task.channels_last, f"{fault}; {remedy}.")
        for name, part in protocol.task.module.named_modules():
            penalty = "The network has a penalty, as with sharing of kind basis, which is not computed for"
            require(not isinstance(part, Penalised), f"{penalty} several clients together; {loop}")
            tied = (
                f"{type(part).__name__} computes with several examples at a time, and batches are padded here"
            )
            require(not ties_examples(part), f"{tied}; {loop}")
            recurrent = f"The recurrent layer {name!r} cannot be grouped; {loop}"
            require(not isinstance(part, nn.RNNBase), recurrent)
        self.protocol, self.shards, self._alike = protocol, shards, Alike(protocol, shards)
        self.device = torch.device(protocol.settings.device)
        on_cpu = self.device.type == "cpu"
        self.rows = rows or (ROWS_CPU if on_cpu else ROWS_GPU)
        self._jobs = max(1, (NUMBERS_CPU if on_cpu else NUMBERS_GPU) // protocol.partition.space.size)
        self._executor, self._compared = Executor(protocol), 0
        self._stack = Stack(self._executor)

    def sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        """See :meth:`.Execution.sum`."""
        try:
            return self._executor.settled(round, partial(self._sum, round, cohort))
        except ValueError as error:
            raise NotTogether(f"Round {round.number}: {error}") from error

    def _sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        updates = self.run_cohort(round, cohort)

        def answer(client: int) -> Update:
            update = next(updates)
            if isinstance(update, ClientError):
                raise update
            update.seconds = 0.0  # of some that are computed alone; the round's count
            return self._executor.check(update, round)

        return sum_cohort(self.protocol, round, cohort, answer)

    def run_cohort(self, round: Round, clients: Sequence[int]) -> Iterator[Update | ClientError]:
        """Updates of ``clients``, in their order; a client that failed gives its error in place of one.

        Clients are read and computed a few at a time, as many as rows and numbers allow."""
        members: list[_Member | ClientError] = []
        rows = count = 0
        for client in clients:
            jobs = self.protocol.plan(client, round.number)
            member = _attempt(client, round, partial(self._member, round, client, jobs))
            more = 0
            if isinstance(member, _Member):
                self._alike.check(client, member.shard)
                more = member.width * self.protocol.task.samples
            if rows + more > self.rows or count + len(jobs) > self._jobs:
                yield from self._updates(round, members)
                members, rows, count = [], 0, 0
            members.append(member)
            rows, count = rows + more, count + len(jobs)
        yield from self._updates(round, members)

    def _member(self, round: Round, client: int, jobs: Sequence[Job]) -> _Member:
        shard = self._executor.checked(client, self.shards[client])
        view = self._executor.view(round, client)
        local = self.protocol.method.local_settings(view)
        steps = [local_batches(self.protocol, view, local, len(shard), job) for job in jobs]
        apart = self.protocol.method.held_out  # whose feedback takes the place of psi's gradient
        asked = [replace(job, psi=False) if apart else job for job in jobs]
        learned = count_learned(self.protocol, len(shard))
        update = Update(examples=learned)
        self._executor.begin(update, client, round)
        here = self._executor.on_device(round)
        corrected = [self._executor.correction(update, client, here, job.partition) for job in asked]
        work = [ClientJob(client, local, *of) for of in zip(asked, steps, corrected, strict=True)]
        return _Member(client, shard, jobs, work, update)

    def _updates(
        self, round: Round, members: Sequence[_Member | ClientError]
    ) -> Iterator[Update | ClientError]:
        """The updates of ``members``: together, or else from the loop, whose errors name the client."""
        whole = [member for member in members if isinstance(member, _Member) and member.width]
        updates: dict[int, Update | ClientError] = {}
        try:
            updates = self._together(round, whole) if whole else {}
            if updates:
                self._compared += 1
                if is_power_of_two(self._compared):
                    most_padded = min(reversed(whole), key=lambda member: member.width)
                    self._compare(round, most_padded, updates)
        except Exception as error:
            if out_of_memory(error):
                whole = []
                if not self._executor.moved.give_up():
                    self.rows, self._jobs = max(1, self.rows // 2), max(1, self._jobs // 2)
            else:
                updates = {member.client: self._alone(round, member) for member in whole}
                if not any(isinstance(update, ClientError) for update in updates.values()):
                    reason = " ".join(str(error).split())
                    fault = f"These clients cannot be computed together ({type(error).__name__}: {reason})"
                    raise ValueError(f"{fault}; use execution: loop, or fewer rows at once.") from error
        if len(members) > 1 and not whole:  # of none that fit
            for part in (members[: len(members) // 2], members[len(members) // 2 :]):
                yield from self._updates(round, part)
            return
        for member in members:
            if isinstance(member, ClientError):
                yield member
            else:
                yield updates.pop(member.client) if member.client in updates else self._alone(round, member)

    def _compare(self, round: Round, member: _Member, found: Mapping[int, Update | ClientError]) -> None:
        """Compute one client alone, too: hooks of gradients, for one, are not called for several."""
        grouped = found.get(member.client)
        if round.kept is not None or self.protocol.codec is not None or not isinstance(grouped, Update):
            return
        alone = self._alone(round, member)
        if isinstance(alone, ClientError):
            raise alone
        near = 0.1 if self.protocol.task.precision == "bf16" else 1e-3
        rounding = torch.finfo(round.w.dtype).eps * float(round.w.norm())  # of the server's w
        updates = [update for update in found.values() if isinstance(update, Update)]
        for part, mine in alone.parts.items():
            most = max(update.parts[part].norm() for update in updates if part in update.parts)
            differs = (mine - grouped.parts[part]).norm()
            if differs > near * max(mine.norm(), 0.1 * most) + rounding:
                raise ValueError("alone, a client finds other changes")

    def _alone(self, round: Round, member: _Member) -> Update | ClientError:
        return _attempt(member.client, round, lambda: self._executor.run(round, *member[:3]))

    def _together(self, round: Round, members: Sequence[_Member]) -> dict[int, Update | ClientError]:
        """Updates by client, without those whose loss is not finite."""
        shards = [self._executor.moved(member.shard) for member in members]
        inputs, targets = joined([(shard.inputs, shard.targets) for shard in shards])
        updates = {}
        for member in members:
            visited = sum(len(places) for of in member.work for places in of.batches)
            begun = member.update
            updates[member.client] = Update(examples=begun.examples, visited=visited, kept={**begun.kept})
        computed, means = [], []
        for stack in self._stacks(members):
            mean, deltas, psi = self._stack.run(round, stack, inputs, targets)
            for row, (client, _, job, *_) in enumerate(stack):
                if job.partition is not None:
                    updates[client].parts[job.partition] = deltas[row]
                if psi is not None:
                    updates[client].parts[PSI] = psi[row]
            computed += stack
            means.append(mean)
        losses: dict[int, dict[Job, Any]] = {client: {} for client in updates}
        every, later = torch.cat(means), self._executor.doubts is not None
        for (client, _, job, *_), loss in zip(computed, every if later else every.tolist(), strict=True):
            losses[client][job] = loss
        for client, update in updates.items():
            self._executor.note(update, client, losses[client])
        if self.protocol.method.held_out:
            for member in members:
                self._add_feedback(round, updates[member.client], member)
        return {
            client: _attempt(client, round, partial(self._executor.send, update, client, round))
            for client, update in updates.items()
            if later or all(map(math.isfinite, losses[client].values()))
        }

    def _add_feedback(self, round: Round, update: Update, member: _Member) -> None:
        """What takes the place of psi's gradient where clients hold examples out."""
        partition, view = self.protocol.partition, self._executor.view(round, member.client)
        for job in member.jobs:
            if job.psi:
                k, j = job.subnetwork, job.partition
                after = self._executor.point(round, partition, k).theta
                if j is not None:
                    after = partition.put(after, j, k, partition.take(after, j, k) + update.parts[j])
                shard = self._executor.moved(member.shard)
                update.parts[PSI] = self._executor.feedback(round, view, shard, job, after)

    def _stacks(self, members: Sequence[_Member]) -> Iterator[list[ClientJob]]:
        """The members' jobs as :meth:`Stack.run` takes them, in at most ``rows`` rows and ``_jobs`` jobs."""
        kinds: dict[Job | tuple[bool, int], list[ClientJob]] = {}
        offset = 0
        for member in members:
            for work in member.work:
                moved = work._replace(batches=[places + offset for places in work.batches])
                kinds.setdefault(self._kind(work.job), []).append(moved)
            offset += len(member.shard)
        for jobs in kinds.values():
            jobs.sort(key=lambda of: (-len(of.batches), -len(of.batches[0])))  # like to like: little padding
            width = max(len(of.batches[0]) for of in jobs) * self.protocol.task.samples
            count = min(self._jobs, max(1, self.rows // width))
            for first in range(0, len(jobs), count):
                stack = jobs[first : first + count]  # in it, more steps come first, and equal jobs together
                yield sorted(stack, key=lambda of: of.order)

    def _kind(self, job: Job) -> Job | tuple[bool, int]:
        """Equal for jobs that can be computed together: any that train networks of one size, unless the loss
        tells them apart."""
        apart = job.partition is None or type(self.protocol.method).loss is not Method.loss
        return job if apart else (job.psi, self.protocol.partition.space_of(job.subnetwork).size)


def _attempt(client: int, round: Round, compute: Callable[[], Result]) -> Result | ClientError:
    """What ``compute`` gives, or the client's error."""
    try:
        with blamed(client, round.number):
            return compute()
    except ClientError as error:
        return error


class _Member(NamedTuple):
    """A client, its data, what it was asked for, and what is differentiated for that."""

    client: int
    shard: Dataset
    jobs: Sequence[Job]
    work: list[ClientJob]
    update: Update  # as it begins

    @property
    def width(self) -> int:
        """Examples in the largest steps of its jobs, together."""
        return sum(len(of.batches[0]) for of in self.work)
