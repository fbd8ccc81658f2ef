"""A round of each workload in bare PyTorch, as lean as it can honestly be: what engines are measured against.

One module, written in place; subnetworks built once per round; one job at a time, so no fusion over clients.
Images are channels-last, which is faster in fp32 on a CPU too: a step of the MNIST CNN takes two thirds
of the time, one of the ResNet-9 the same."""

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from benchmarks.rounds.networks import Model, Uniform, network, plain
from benchmarks.rounds.workloads import Workload

Cohort = Sequence[tuple[int, int]]  # a client's number and chunk, each
ClientJob = tuple[int, int | None]  # a client, and the partition that it trains; None: psi's gradient


class LocalWork:
    """Local SGD whose gradients are added straight into a sum: a step costs one pass over the weights.

    It works where its data are, in float32, or with ``bf16`` under autocast to bfloat16."""

    bf16 = False

    def __init__(self, model: Model, shards: Sequence[tuple[Tensor, Tensor]], workload: Workload) -> None:
        self.model, self.shards, self.workload = model, shards, workload  # images and labels of every client
        self.sums = [torch.zeros_like(weight) for weight in model.weights]
        self.several = workload.examples > workload.batch_size  # local steps

    def uniform(self, job: ClientJob, step: int) -> Uniform:
        return torch.rand_like

    def order(self, job: ClientJob, examples: int) -> Tensor:
        return torch.randperm(examples, device=self.sums[0].device)

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

    def _learn(self, *, weights: bool) -> None:
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
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.model.loss(x, y, self.uniform(job, step))
        return torch.autograd.grad(loss, self._wanted)

    @torch.no_grad()
    def _step(self, gradients: Sequence[Tensor]) -> None:
        weights, rate = self.model.weights, -self.workload.learning_rate
        if self.rates is None:
            torch._foreach_add_(weights, gradients, alpha=rate)
        else:
            torch._foreach_addcmul_(weights, gradients, self.rates, value=rate)


class BareFedAvg:
    """FedAvg with an optimiser on the server; the model's weights are the server's, and psi is frozen."""

    def __init__(self, work: LocalWork) -> None:
        self.work, self.weights = work, work.model.weights
        kind = torch.optim.Adam if work.workload.server == "adam" else torch.optim.SGD
        self.server = kind(self.weights, work.workload.server_learning_rate, fused=True)

    def round(self, cohort: Cohort) -> None:
        work = self.work
        work.begin(1)
        examples = work.train([client for client, _ in cohort])
        torch._foreach_mul_(work.sums, work.workload.learning_rate / examples)  # minus the mean change
        for weight, total in zip(self.weights, work.sums, strict=True):
            weight.grad = total
        self.server.step()


class BarePartitioned:
    """Partitioned training with psi; ``assignment``: the partition (1..C) of every number, drawn if None."""

    def __init__(self, work: LocalWork, assignment: Tensor | None = None) -> None:
        self.work, self.weights, workload = work, work.model.weights, work.workload
        self.chunks = len(workload.chunks)
        norms = [layer for layer in work.model.network.modules() if isinstance(layer, nn.GroupNorm)]
        self.scales = {id(layer.weight) for layer in norms}
        self.stacked = self.scales | {id(layer.bias) for layer in norms}
        default, random = [], []
        for weight in self.weights:
            flat = weight.detach().reshape(-1)
            shares = torch.tensor(workload.chunks).expand(len(flat), -1)
            if id(weight) in self.stacked:
                rest = torch.full_like(flat, float(id(weight) in self.scales))
                default += [flat, *[rest] * (self.chunks - 1)]
                random.append(torch.arange(self.chunks).repeat_interleave(len(flat)))
            else:
                default.append(flat)
                random.append(torch.multinomial(shares, 1).squeeze(1))
        self.default = torch.cat(default)
        self.sizes = [len(part) for part in random]
        assignment = torch.cat(random) + 1 if assignment is None else assignment
        self.masks = [assignment == k + 1 for k in range(self.chunks)]
        self.places = [mask.nonzero().squeeze(1) for mask in self.masks]
        self.w = [self.default[places] for places in self.places]
        self.adams = [torch.optim.Adam([w], workload.server_learning_rate, fused=True) for w in self.w]
        self.adam = torch.optim.Adam(work.model.psi, workload.psi_learning_rate, fused=True)

    def round(self, cohort: Cohort) -> None:
        psi = self.work.model.psi
        psi_sums, psi_examples = [torch.zeros_like(parameter) for parameter in psi], 0
        for k in range(1, self.chunks + 1):
            training = [client for client, chunk in cohort if chunk <= k]
            asking = [client for client, chunk in cohort if chunk == k + 1]
            if training or asking:
                self.work.begin(k, self._load(k))
                examples = self.work.train(training)
                if training:
                    self.w[k - 1].grad = self._collect(k).mul_(self.work.workload.learning_rate / examples)
                psi_examples += self.work.ask(asking, psi_sums)
        for w, adam in zip(self.w, self.adams, strict=True):
            adam.step()  # nothing happens without a gradient
            w.grad = None
        if psi_examples:
            for parameter, total in zip(psi, psi_sums, strict=True):
                parameter.grad = total / psi_examples
            self.adam.step()

    @torch.no_grad()
    def _load(self, k: int) -> list[Tensor] | None:
        """Write subnetwork k into the model; what local steps multiply gradients by, if there are several."""
        flat = self.default.clone()
        for places, w in islice(zip(self.places, self.w, strict=True), k):
            flat[places] = w
        rates, self.factors = [], {}
        masks = self.masks[k - 1].split(self.sizes)
        for weight, part, mask in zip(self.weights, flat.split(self.sizes), masks, strict=True):
            if id(weight) in self.stacked:
                copies = part.view(self.chunks, -1)
                scale = id(weight) in self.scales
                factor = copies[: k - 1].prod(0) if scale else torch.ones_like(copies[0])
                weight.copy_(copies.prod(0) if scale else copies.sum(0))
                self.factors[id(weight)] = factor
                rates.append(factor.square())  # from the folded scale to copy k, and back
            else:
                weight.copy_(part.view_as(weight))
                rates.append(torch.empty_like(weight).copy_(mask.view_as(weight)))
        return rates if self.work.several else None

    @torch.no_grad()
    def _collect(self, k: int) -> Tensor:
        """The sums' elements that belong to w_k."""
        parts = []
        for weight, total in zip(self.weights, self.work.sums, strict=True):
            if id(weight) in self.stacked:
                parts += [total * self.factors[id(weight)]] * self.chunks
            else:
                parts.append(total.reshape(-1))
        return torch.cat(parts)[self.places[k - 1]]


def build(workload: Workload) -> Model:
    torch.manual_seed(workload.seed)
    return Model(plain(network(workload)), workload.samples, workload.affine)
