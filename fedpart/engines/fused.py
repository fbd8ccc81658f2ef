"""Cohort fusion: where every client takes one local step, a cohort's sum is a gradient of its pooled data."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.engines.alike import Alike, NotAlike, NotTogether, loss_and_draws
from fedpart.engines.batches import count_learned, local_batches, purpose_of
from fedpart.engines.executor import Executor
from fedpart.engines.local import EXECUTIONS, Loop
from fedpart.federated.cohorts import CohortSum, upload_bytes
from fedpart.federated.protocol import Protocol
from fedpart.methods.base import FederatedMethod
from fedpart.randomness.noise import JoinedNoise, Noise, common_noise
from fedpart.task.gradients import Job, gradients, kept_casts, reported
from fedpart.task.looking.values import is_power_of_two
from fedpart.task.task import Batch
from fedpart.trees import first_leaf, joined, map_leaves
from fedpart.updates.combining.shared import FedNova
from fedpart.updates.errors import out_of_memory
from fedpart.updates.stages import UsualNorms, doing
from fedpart.updates.stages.combining import Combining
from fedpart.updates.update import PSI, Round, Update

# Examples times S in one pass: on a CPU its activations stay near, and a GPU is busy.
ROWS = {"cpu": 512, "cuda": 32768}
# A pass is padded to a multiple of so many: kernels are made, and kept, for every shape that they meet.
ROUND = 16


@EXECUTIONS.register("fused")
class FusedRunner:
    """Computes a cohort's sum with one pass per kind of job, instead of one per client and job.

    With one step of SGD per client, ``sum_i n_i delta_i = -lr * gradient of the sum of all losses`` (Eq. 25
    from the server's values), and gradients of psi are summed over examples anyway (Eq. 26). No client's own
    update exists, so that nothing can look at one."""

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset]) -> None:
        settings, local = protocol.settings, protocol.settings.local
        loop, method = "use execution: loop.", settings.method
        none = "Fused clients have no updates of their own to clip, to round, to compare or to make private"
        free = settings.clip is None and settings.defence is None and settings.upload is None  # privacy clips
        require(free, f"{none}; leave clip, upload, defence and privacy out, or {loop}")
        kept = f"Fused clients have no updates of their own, of which those of {method!r} keep something"
        require(not settings.combination.keeps, f"{kept}; {loop}")
        blind = UsualNorms, *([Combining] if type(settings.combination) is FedNova else [])  # of one step
        stages, of_update = [s for s in protocol.stages if type(s) not in blind], ("begin", "send", "sent")
        hooks = [hook for at in (*of_update, "receive") for hook in doing(stages, at)]
        looking = sorted({type(hook.__self__).__name__ for hook in hooks})
        looking += [method] if type(protocol.method).counted is not FederatedMethod.counted else []
        sees = f"Fused clients have no updates of their own, which {' and '.join(looking)} would change"
        require(not looking, f"{sees}; {loop}")
        step = f"Fused clients take one step each, but local.epochs is {local.epochs}; set it to 1, or {loop}"
        require(local.epochs == 1, step)
        weigh = f"Fused clients weigh as much as their examples, but weighting is {settings.weighting!r}"
        require(settings.weighting == "examples", f"{weigh}; set it to examples, or {loop}")
        sizes = "Fused clients have one network, but there are architectures; leave architectures out"
        require(settings.architectures is None, f"{sizes} or {loop}")
        alike = "Fused clients have no psi, settings, loss or network of their own, which the method"
        require(not protocol.method.tells_clients_apart, f"{alike} {method!r} asks for; {loop}")
        held = f"Fused clients learn psi from what they train on, which {method!r} does not; {loop}"
        require(not protocol.method.validates, held)
        layers = protocol.task.module.modules()
        often = "Gradients of an embedding go by how often its batch has a token (scale_grad_by_freq)"
        counts = (e for e in layers if getattr(e, "scale_grad_by_freq", False) and e.weight.requires_grad)
        require(not any(counts), f"{often}; {loop}")
        if isinstance(shards, (list, tuple)):  # others are read when they are needed
            for client, shard in enumerate(shards):
                learned = count_learned(protocol, len(shard))
                _check_steps(client, learned, -(-learned // local.batch_size))
        self.protocol, self.shards, self._alike = protocol, shards, Alike(protocol, shards)
        self._one_by_one = Loop(protocol, shards)
        rows = ROWS.get(torch.device(settings.device).type, ROWS["cuda"])
        self._rows = max(1, rows // protocol.task.samples)  # halved where memory does not do
        self._by_row: dict[Job, int] = {}  # how often their rows have been drawn

    def sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        """The sum of the cohort's updates at the server's values.

        If it cannot be computed, the clients are run one by one, which names the one to blame; where that is
        none, because numbers are merely large, their sum counts."""
        try:
            with kept_casts(self._one_by_one.executor.device):
                return self._fused(round, cohort)
        except (_NotFused, NotAlike) as error:
            raise NotTogether(str(error)) from error
        except Exception as error:
            if not out_of_memory(error):  # its frames hold memory, up to the end of this block
                summed = self._one_by_one.sum(round, cohort)
                if not (summed.skipped or isinstance(error, ArithmeticError)):
                    reason = " ".join(str(error).split())
                    fault = f"The clients of round {round.number} cannot be fused ({reason})"
                    raise NotTogether(f"{fault}; use execution: loop.") from error
                return summed
        if not self._one_by_one.executor.moved.give_up():
            if self._rows == 1:
                return self._one_by_one.sum(round, cohort)
            self._rows //= 2
        return self.sum(round, cohort)

    def _fused(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        executor, size = self._one_by_one.executor, 0
        total, sums = Update(clients=len(cohort)), dict[tuple[Job, bool, bool], PooledSum]()
        for client in cohort:
            view, jobs = executor.view(round, client), self.protocol.plan(client, round.number)
            shard = executor.moved(executor.checked(client, self.shards[client]))
            self._alike.check(client, shard)
            examples = count_learned(self.protocol, len(shard))
            if examples > self.protocol.settings.max_examples:
                raise ArithmeticError("a client has more than max_examples")
            total.examples += examples
            size += upload_bytes(self.protocol, client, jobs)
            main, unseen = reported(jobs), self.protocol.unseen(client, jobs)
            total.unseen_examples += 0 if unseen is None else examples
            for job in jobs:
                places = local_batches(self.protocol, view, self.protocol.settings.local, len(shard), job)
                batches = [*executor.noisy(view, shard, purpose_of(job), places)]
                if job.partition is not None:
                    _check_steps(client, examples, len(batches))
                visited = sum(batch.examples for batch, _ in batches)
                total.visited += visited
                weight = examples / visited  # of a psi batch
                kind = (job, job == main, job == unseen)
                if kind not in sums:
                    self._check_noise(round, job, batches[0][0], len(cohort))
                    sums[kind] = PooledSum(executor, round, job, self._rows)
                for batch, noise in batches:
                    sums[kind].add(batch, noise, weight)
        for (job, is_main, is_unseen), pooled in sums.items():
            pooled.flush()
            total.add(self._term(round, job, pooled))
            total.loss += pooled.loss if is_main else 0.0
            total.unseen_loss += pooled.loss if is_unseen else 0.0
        if self.protocol.task.acts_backward:
            fault = "A hook on gradients, or a backward() of your own, may see examples of several clients at"
            raise _NotFused(f"{fault} once; use execution: loop.")
        summed = CohortSum([*cohort], total, size)
        if not summed.settle([torch.dot(tensor, tensor).sqrt() for tensor in total.parts.values()]):
            raise ArithmeticError("the loss or its gradient is not finite, or too large")
        return summed

    def _check_noise(self, round: Round, job: Job, batch: Batch, clients: int) -> None:
        """Refuse noise that rows share, even where its shape is a pass's by chance: see how shapes grow."""
        count = self._by_row[job] = self._by_row.get(job, 0) + 1
        if not is_power_of_two(count):
            return
        some = (Batch(*map_leaves(lambda leaf, n=n: _repeated(leaf[:1], n), batch[:2])) for n in (2, 3))
        draws = [loss_and_draws(self._one_by_one.executor, round, job, part)[1] for part in some]
        for two, three in zip(*draws, strict=True):
            if not two or 3 * two[0] != 2 * three[0]:
                raise common_noise(two)
        self._check_rows(round, job, batch)
        self._check_sizes(round, job, batch, clients)

    def _check_rows(self, round: Round, job: Job, batch: Batch) -> None:
        """Refuse a network that computes with several examples at a time, as with their mean."""

        def other(leaf: Tensor) -> Tensor:
            return leaf[:1] / 2 if batch.examples == 1 and leaf.is_floating_point() else leaf[-1:]

        executor, parts, losses = self._one_by_one.executor, batch[:2], list[Tensor]()
        for beside, place in ((other, 0), (other, 1), (lambda leaf: leaf[:1], 0)):
            pair = map_leaves(lambda leaf, b=beside: torch.cat([leaf[:1], b(leaf)]), parts)
            pair = map_leaves(lambda leaf, p=place: leaf.roll(p, 0), pair)
            counts = torch.eye(2, dtype=self.protocol.task.dtype, device=first_leaf(pair).device)[place]
            losses.append(loss_and_draws(executor, round, job, Batch(pair[0], pair[1], counts))[0])
        self._check_equal(losses)

    def _check_sizes(self, round: Round, job: Job, batch: Batch, clients: int) -> None:
        """Refuse a network that computes with the number of examples, or with what some of them are."""
        rows, executor = batch.examples, self._one_by_one.executor

        def loss(part: slice, times: int = 1) -> Tensor:
            tree = map_leaves(lambda leaf: torch.cat([leaf[part]] * times), batch[:2])
            return loss_and_draws(executor, round, job, Batch(tree[0], tree[1]))[0]

        half, whole = rows // 2, slice(None)
        losses = [loss(whole), loss(whole, min(clients, _CLIENTS))]
        if half:
            parts = half * loss(slice(half)) + (rows - half) * loss(slice(half, None))
            losses.append(parts / rows)
        self._check_equal(losses)

    def _check_equal(self, losses: Sequence[Tensor]) -> None:
        near = 1e-2 if self.protocol.task.precision == "bf16" else 1e-4
        require(all(loss.isfinite() for loss in losses), "a loss is not finite", ArithmeticError)
        if not all(torch.allclose(losses[0], loss, rtol=near, atol=1e-6) for loss in losses):
            fault = "The loss of an example depends on the other examples of its batch"
            raise _NotFused(f"{fault}, so that clients cannot be fused; use execution: loop.")

    def _term(self, round: Round, job: Job, found: "PooledSum") -> Update:
        """What came out of one kind of job, as a term of the cohort's sum."""
        executor, j, term = self._one_by_one.executor, job.partition, Update(clients=0)
        partition = self.protocol.partition
        local = self.protocol.settings.local.at(round.number, round.local_rate)
        if j is not None:
            gradient = partition.take(found.theta, j, job.subnetwork)
            if decay := local.decays(self.protocol.chunks)[j - 1]:
                start = executor.point(round, partition, job.subnetwork).theta
                w_j = partition.take(start, j, job.subnetwork)
                gradient = gradient.add(w_j, alpha=decay * found.examples)
            term.parts[j], term.weights[j] = gradient.mul_(-local.learning_rate), found.examples
        if job.psi:
            term.parts[PSI], term.weights[PSI] = found.psi.mul_(executor.psi_mask), found.examples
        return term


def _check_steps(client: int, examples: int, steps: int) -> None:
    if steps > 1:
        fault = f"Client {client} takes {steps} steps with its {examples} examples, but fused clients take"
        raise _NotFused(f"{fault} one; raise local.batch_size, or use execution: loop.")


_CLIENTS = 20  # whose examples are computed at once, to see whether their number changes anything


class _NotFused(ValueError):
    """Settings and data do not allow for fusion; the message is for the user."""


class PooledSum:
    """Loss and gradients of one kind of job, summed over examples, a pass whenever that is full."""

    def __init__(self, executor: Executor, round: Round, job: Job, rows: int) -> None:
        self._executor, self._job, self._psi, self._rows = executor, job, executor.on_device(round).psi, rows
        self._point = executor.point(round, executor.protocol.partition, job.subnetwork)
        self._waiting: list[tuple[Batch, Noise, float]] = []
        self._round = max(1, ROUND // executor.protocol.task.samples)
        self.theta, self.psi = torch.zeros_like(self._point.theta), torch.zeros_like(self._psi)
        self.loss = self.examples = 0.0

    def add(self, batch: Batch, noise: Noise, weight: float) -> None:
        """Take in a batch whose examples count ``weight`` each; no more are held than a pass takes."""
        self._waiting.append((batch, noise, weight))
        if sum(waiting.examples for waiting, _, _ in self._waiting) >= self._rows:
            self.flush()

    def flush(self) -> None:
        """Run the pass over what waits for one."""
        if not self._waiting:
            return
        executor, (batches, noises, weights) = self._executor, zip(*self._waiting, strict=True)
        protocol = executor.protocol
        counts = [batch.examples for batch in batches]
        padding = -sum(counts) % self._round
        batch = _pooled(batches, weights, padding, protocol.task.dtype)
        noise = JoinedNoise(noises, counts, protocol.task.samples, padding)
        task, loss = protocol.task, protocol.method.loss
        result = gradients(task, loss, self._job, self._point, self._psi, batch, noise)
        examples = sum(weight * count for weight, count in zip(weights, counts, strict=True))
        if result.theta is not None:
            self.theta.add_(result.theta, alpha=examples)
        if result.psi is not None:
            self.psi += result.psi * examples
        self.loss = self.loss + result.loss.to(executor.wide) * examples
        self.examples += examples
        self._waiting = []


def _pooled(batches: Sequence[Batch], weights: Sequence[float], padding: int, dtype: torch.dtype) -> Batch:
    """The batches as one, examples of batch i with ``weights[i]``; padding repeats the last with weight 0."""
    examples = [(batch.inputs, batch.targets) for batch in batches]
    counts = torch.tensor([batch.examples for batch in batches])
    of_rows = [torch.tensor(weights, dtype=dtype).repeat_interleave(counts)]
    if padding:
        examples.append(map_leaves(lambda leaf: _repeated(leaf[-1:], padding), examples[-1]))
        of_rows.append(of_rows[-1].new_zeros(padding))
    inputs, targets = joined(examples)
    return Batch(inputs, targets, torch.cat(of_rows).to(first_leaf(inputs).device))


def _repeated(example: Tensor, times: int) -> Tensor:
    return example.expand(times, *example.shape[1:])
