"""A client's work in bare PyTorch: gradients of its batches, added up in place."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.rounds.networks import Model, Uniform
from benchmarks.rounds.workloads import Workload

Cohort = Sequence[tuple[int, int]]  # a client's number and chunk, each
ClientJob = tuple[int, int | None]  # a client, and the partition that it trains; None: psi's gradient


class LocalWork:
    """Plain SGD changes the weights by minus the learning rate times the sum of its gradients.

    So these are added up as they come: besides the model, a client with one local step costs one pass over
    the parameters. After a client with several, the weights are put back from a copy.
    """

    def __init__(self, model: Model, shards: Sequence[tuple[Tensor, Tensor]], workload: Workload) -> None:
        self.model, self.shards, self.workload = model, shards, workload  # images and labels of every client
        self.sums = [torch.zeros_like(weight) for weight in model.weights]
        self.several = workload.examples > workload.batch_size  # local steps
        self._flops: dict[bool, int] = {}

    def uniform(self, job: ClientJob, step: int) -> Uniform:
        """The noise of a step."""
        return torch.rand_like

    def order(self, job: ClientJob, examples: int) -> Tensor:
        """In which a client takes its examples."""
        return torch.randperm(examples)

    @torch.no_grad()
    def begin(self, partition: int, rates: Sequence[Tensor] | None = None) -> None:
        """Clients will train from the model's weights; ``rates`` multiply the learning rate, by number."""
        self.partition, self.rates = partition, rates
        torch._foreach_zero_(self.sums)
        if self.several:
            self.start = [weight.clone() for weight in self.model.weights]

    def train(self, clients: Sequence[int]) -> int:
        """Add the clients' gradients, each times its examples, to the sums; how many examples these were."""
        examples = 0
        self._learn(weights=True)
        for client in clients:
            job, n = (client, self.partition), len(self.shards[client][1])
            batches = self._batches(job)
            for step, (x, y) in enumerate(batches):
                gradients = self._gradients(job, step, x, y)
                torch._foreach_add_(self.sums, gradients, alpha=n)
                if step + 1 < len(batches):
                    self._step(gradients)
            if self.several:
                with torch.no_grad():
                    torch._foreach_copy_(self.model.weights, self.start)
            examples += n
        return examples

    def ask(self, clients: Sequence[int], sums: Sequence[Tensor]) -> int:
        """Add the clients' psi gradients, summed over examples, to ``sums``; how many examples these were."""
        examples = 0
        self._learn(weights=False)
        for client in clients:
            for step, (x, y) in enumerate(self._batches((client, None))):
                torch._foreach_add_(sums, self._gradients((client, None), step, x, y), alpha=len(y))
                examples += len(y)
        return examples

    def passes(self, jobs: Sequence[ClientJob]) -> None:
        """Forward and backward over the batches of the jobs, and nothing else."""
        for job in jobs:
            self._learn(weights=job[1] is not None)
            for step, (x, y) in enumerate(self._batches(job)):
                self._gradients(job, step, x, y)

    def flops(self, jobs: Sequence[ClientJob]) -> int:
        """Floating-point operations of these passes: convolutions and matrix products."""
        for job in jobs:
            if (kind := job[1] is None) not in self._flops:
                with FlopCounterMode(display=False) as counter:
                    self.passes([job])
                self._flops[kind] = counter.get_total_flops()
        return sum(self._flops[job[1] is None] for job in jobs)

    def _learn(self, *, weights: bool) -> None:
        """Take gradients of the weights, or of psi."""
        for weight in self.model.weights:
            weight.requires_grad_(weights)
        for parameter in self.model.psi:
            parameter.requires_grad_(not weights)
        self._wanted = self.model.weights if weights else self.model.psi

    def _batches(self, job: ClientJob) -> list[tuple[Tensor, Tensor]]:
        client, partition = job
        x, y = self.shards[client]
        size, n = self.workload.batch_size, len(y)
        if partition is None:
            n = min(n, self.workload.psi_batch or n)
        if n < len(y) or (partition is not None and n > size):
            places = self.order(job, len(y))[:n]
            x, y = x[places], y[places]
        return list(zip(x.split(size), y.split(size), strict=True))

    def _gradients(self, job: ClientJob, step: int, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.model.loss(x, y, self.uniform(job, step)), self._wanted)

    @torch.no_grad()
    def _step(self, gradients: Sequence[Tensor]) -> None:
        weights, rate = self.model.weights, -self.workload.learning_rate
        if self.rates is None:
            torch._foreach_add_(weights, gradients, alpha=rate)
        else:
            torch._foreach_addcmul_(weights, gradients, self.rates, value=rate)
