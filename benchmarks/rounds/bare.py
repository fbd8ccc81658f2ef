"""A round of each workload in bare PyTorch, as lean as it can honestly be: what engines are measured against.

One module, written in place; subnetworks built once per round; one job at a time, so no fusion over clients;
fp32. Images are channels-last, which is faster in fp32 on a CPU too: a step of the MNIST CNN takes two thirds
of the time, one of the ResNet-9 the same.

``bench`` runs it in a process of its own, ``python -m benchmarks.rounds.bare``.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.rounds.local_work import ClientJob, Cohort, LocalWork
from benchmarks.rounds.networks import NETWORKS, Model
from benchmarks.rounds.timed import TimedEngine, serve
from benchmarks.rounds.workloads import Workload
from benchmarks.script import seconds


class BareFedAvg:
    """FedAvg with a server-side Adam; the model's weights are the server's, and psi is frozen."""

    def __init__(self, work: LocalWork) -> None:
        self.work, self.weights = work, work.model.weights
        self.adam = torch.optim.Adam(self.weights, work.workload.server_learning_rate, fused=True)

    def round(self, cohort: Cohort) -> None:
        work = self.work
        work.begin(1)
        examples = work.train([client for client, _ in cohort])
        torch._foreach_mul_(work.sums, work.workload.learning_rate / examples)  # minus the mean change
        for weight, total in zip(self.weights, work.sums, strict=True):
            weight.grad = total
        self.adam.step()

    def jobs(self, cohort: Cohort) -> list[ClientJob]:
        return [(client, 1) for client, _ in cohort]


class BarePartitioned:
    """Partitioned training with psi.

    The numbers of a weight lie in one flat vector, those of normalisation layers C times: subnetwork k
    multiplies scales 1..k and adds biases 1..k. ``assignment`` is the partition (1..C) of every number in the
    flat vector; drawn at random if not given.
    """

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

    def jobs(self, cohort: Cohort) -> list[ClientJob]:
        trained = [(client, j) for client, k in cohort for j in range(k, self.chunks + 1)]
        return [*trained, *((client, None) for client, k in cohort if k > 1)]

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


def build(workload: Workload, memory_format: torch.memory_format = torch.channels_last) -> Model:
    """The model of a workload."""
    torch.manual_seed(workload.seed)
    network = NETWORKS[workload.model](workload.classes, workload.shape, workload.dropout)
    return Model(network, workload.samples, workload.affine, memory_format)


class TimedBareLoop(TimedEngine):
    """Rounds of the bare loop, for the cohorts that all engines have."""

    def __init__(self, work: LocalWork, cohorts: Sequence[Cohort]) -> None:
        self.work, self.cohorts, self.done = work, cohorts, 0
        self.loop = BarePartitioned(work) if work.workload.partitioned else BareFedAvg(work)

    def run(self, rounds: int) -> dict[str, Any]:
        cohorts = self.cohorts[self.done : self.done + rounds]
        self.done += rounds
        flops = [self.work.flops(self.loop.jobs(cohort)) for cohort in cohorts]
        return {"flops": flops, "seconds": [seconds(partial(self.loop.round, cohort)) for cohort in cohorts]}

    def passes(self) -> Callable[[], object]:
        jobs = self.loop.jobs(self.cohorts[self.done - 1])
        return lambda: self.work.passes(jobs)


def _start(contiguous: bool, arguments: Mapping[str, Any]) -> TimedBareLoop:
    memory_format = torch.contiguous_format if contiguous else torch.channels_last
    torch.set_num_threads(1)
    workload = Workload.from_dict(arguments["workload"])
    shards = [workload.shard(client) for client in range(workload.clients)]
    return TimedBareLoop(LocalWork(build(workload, memory_format), shards, workload), arguments["cohorts"])


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("--contiguous", action="store_true", help="images in PyTorch's default layout")
    serve(partial(_start, asked.parse_args().contiguous))
