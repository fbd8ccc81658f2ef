"""Small networks and clients' shards that tests share."""

import math
from dataclasses import replace
from typing import ClassVar

import reference_partitioned
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedpart import (
    AffineAugmentation,
    ConcreteDropout,
    Dataset,
    Federation,
    HyperModule,
    Protocol,
    Task,
    uniform,
)
from fedpart.engines import local_engine
from fedpart.federated.settings import FederationSettings
from fedpart.updates.update import PSI, Round, Update

SIZE, CLASSES = 6, 3


class Gain(HyperModule):
    """Multiplies its input by a learned factor: psi without any noise."""

    hyperparameters: ClassVar[tuple[str, ...]] = ("log_gain",)

    def __init__(self, gain: float = 1.2) -> None:
        super().__init__()
        self.log_gain = nn.Parameter(torch.tensor(math.log(gain)))

    def forward(self, x):
        return x * self.log_gain.exp()


class Shift(HyperModule):
    """Adds noise of a learned size."""

    hyperparameters: ClassVar[tuple[str, ...]] = ("amount",)

    def __init__(self, amount: float = 0.5) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.tensor(amount))

    def forward(self, x):
        return x + self.amount * uniform(x.shape, like=x)


def chain_net(seed=0, dropout=True):
    """Conv and Linear layers in a row: fit for node partitioning."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *([ConcreteDropout(0.2)] if dropout else []),
        nn.Flatten(),
        nn.Linear(5 * (SIZE // 2) ** 2, 10),
        nn.Tanh(),
        nn.Linear(10, CLASSES),
    )


def norm_net(seed=0):
    """With stacked scales and biases."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        ConcreteDropout(0.2),
        nn.Flatten(),
        nn.Linear(6 * SIZE**2, 8),
        nn.LayerNorm(8),
        nn.Tanh(),
        nn.Linear(8, CLASSES),
    )


def smooth_net(seed=0):
    """Differentiable, without noise, with a hyperparameter."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIZE**2, 7), nn.Tanh(), nn.LayerNorm(7), Gain(), nn.Linear(7, CLASSES)
    )


def shard(examples, seed=0):
    """Random images whose brightness tells the class."""
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, CLASSES, (examples,), generator=g)
    inputs = torch.rand(examples, 1, SIZE, SIZE, generator=g) * (1 + targets.view(-1, 1, 1, 1)) / CLASSES
    return Dataset(inputs, targets)


def shards(sizes, seed=0):
    return [shard(n, 1000 * seed + i) for i, n in enumerate(sizes)]


class Branching(nn.Module):
    """What it does depends on the data, which shows in the first round."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(SIZE**2, CLASSES)

    def forward(self, x):
        return self.linear(x.flatten(1)) if x.sum() > 0 else self.linear(-x.flatten(1))


class Lazy:
    """Clients that are read when they are needed, each by a call; ``asked`` has those that were, in order."""

    def __init__(self, read, clients=8):
        self.read, self.clients, self.asked = read, clients, []

    def __len__(self):
        return self.clients

    def __getitem__(self, client):
        self.asked.append(client)
        return self.read(client)


def augmentation():
    return AffineAugmentation(initial=0.1)


def initial(task):
    """Weights by name, and psi."""
    space = task.parameter_space(1)
    return space.tensors(space.initial()), task.psi_space.initial()


def outputs(task, inputs, noise=None, **options):
    """Of a task, or of a network as the task of one sample, at its first weights."""
    task = task if isinstance(task, Task) else Task(task, samples=1)
    return task.outputs(*initial(task), inputs, noise, **options)


def settings(clients, **changes):
    return FederationSettings(clients=clients, **{"cohort": clients, "seed": 3, **changes})


def after(rounds, federation, data, workers=1, execution="loop", **options):
    """A federation when so many rounds are complete, and their reports; options of the engine."""
    reports = []
    with local_engine(federation, data, workers, execution, **options) as engine:
        engine.run(rounds, reports.append)
    return federation, reports


class Recorder(Federation):
    """Keeps a copy of the cohort's sum of every round: ``totals[round - 1]``."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol)
        self.totals = []

    def step(self, found):
        total = found.total
        self.totals.append(
            None
            if total is None
            else {
                "deltas": {j: delta.clone() for j, delta in total.cells.items()},
                "weights": {part: weight for part, weight in total.weights.items() if part != PSI},
                "psi": None if total.psi is None else total.psi.clone(),
                "psi_weight": total.weights.get(PSI, 0.0),
            }
        )
        super().step(found)


def perturbed(protocol):
    """A federation some way from where it starts."""
    federation, g = Federation(protocol), torch.Generator().manual_seed(1)
    for vector in (federation.w, federation.psi):
        vector += 0.1 * torch.randn(vector.shape, generator=g).to(vector.dtype)
    return federation


def assert_same(one, other):
    """Two results, or two federations, have the bits of weights and psi in common."""
    one, other = (getattr(of, "state", of) for of in (one, other))
    assert torch.equal(one.w, other.w) and torch.equal(one.psi, other.psi)


def assert_same_state(one, other):
    """The same, and what the optimisers remember."""
    one, other = (getattr(of, "state", of) for of in (one, other))
    assert_same(one, other)
    for name in ("optimiser", "optimiser_psi"):
        for mine, theirs in zip(*(getattr(of, name).state_dict() for of in (one, other)), strict=True):
            assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def untimed(reports, **changes):
    """Reports without what a clock has told."""
    return [replace(report, seconds=0, client_seconds=0, **changes) for report in reports]


def assert_near(one, other, rtol=1e-9, atol=1e-12):
    """The same to rounding."""
    one, other = (getattr(of, "state", of) for of in (one, other))
    torch.testing.assert_close(one.w, other.w, rtol=rtol, atol=atol)
    torch.testing.assert_close(one.psi, other.psi, rtol=rtol, atol=atol)


def again(federation, path, protocol=None):
    """Another federation that goes on from its checkpoint."""
    federation.save(path)
    other = Federation(protocol or federation.protocol)
    other.load(path)
    return other


class Counted(TorchDispatchMode):
    """How many of torch's operations a function of (operation, arguments, keywords) is true for."""

    def __init__(self, counts):
        super().__init__()
        self.counts, self.count = counts, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += self.counts(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def reference_rounds(federation, loss, weights, folds, shards, rounds):
    """What the reference of partitioned rounds makes of the same federation; see its arguments."""
    protocol, settings = federation.protocol, federation.protocol.settings
    clients = range(len(shards))
    return reference_partitioned.partitioned(
        loss, weights, folds, federation.psi.clone(), protocol.partition.assignment, shards,
        [protocol.chunk(client) for client in clients],
        [protocol.cap(client) for client in clients],
        [protocol.cohort(round) for round in range(1, rounds + 1)],
        lr=settings.local.learning_rate,
        server_lr=settings.server.learning_rate,
        psi_lr=settings.server_psi.learning_rate,
    )  # fmt: skip


def nothing(number=1, residuals=None):
    """A round of which only the number counts, and what clients have kept."""
    return Round(number, torch.zeros(1), torch.zeros(1), residuals)


def upload_numbers(protocol, client, jobs):
    """How many numbers the client's answer to ``jobs`` holds."""
    return sum(protocol.upload_sizes(client, jobs).values())


def update_of(cells=None, psi=None, psi_weight=None, **more):
    """An update with these changes of cells, by number, and this gradient of psi."""
    weights = {} if psi_weight is None else {PSI: psi_weight}
    return Update(({} if psi is None else {PSI: psi}) | (cells or {}), weights, **more)


def accepted(protocol, client, update, round):
    """A client's update as a term of the sum, as the server makes it, and its norms."""
    protocol.check(update, round.limit)
    return protocol.receive(update, client, round)


class AtRound:
    """An executor with the server's values of a round, for tests that ask for much at the same ones."""

    def __init__(self, executor, number=0, w=None, psi=None):
        self.executor, self.round = executor, Round(number, w, psi)

    def begin(self, number, w, psi):
        self.round = Round(number, w, psi)

    def run(self, *arguments):
        return self.executor.run(self.round, *arguments)

    def run_cohort(self, clients, data):
        self.executor.shards = data
        return self.executor.run_cohort(self.round, clients)

    def __getattr__(self, name):
        return getattr(self.executor, name)
