"""Clients of three sizes in three chunks, which tests share."""

import torch
from problems import CLASSES, SIZE, augmentation, shards
from torch import nn

from fedpart import ConcreteDropout, Federation, FederationSettings, LocalSettings, Protocol, Task, federate
from fedpart.training.result import Result

WIDTHS = (1.0, 0.6, 0.3)
SHARES = (0.3, 0.3, 0.4)
ARCHITECTURES = [
    {"share": share, "model_options": {"width": width}} for share, width in zip(SHARES, WIDTHS, strict=True)
]
TWO = [{"share": 0.5, "model_options": {"width": width}} for width in (1.0, 0.5)]
EXAMPLES = [3, 9, 6, 11, 2, 7, 5, 10, 8, 4]
CHUNKS = (0.5, 0.3, 0.2)


def net(width=1.0, dropout=True):
    """A network with two hidden layers of so many tens of units."""
    torch.manual_seed(0)
    units = round(10 * width)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(SIZE**2, units),
        nn.LayerNorm(units),
        nn.Tanh(),
        nn.Linear(units, units),
        *([ConcreteDropout(0.2)] if dropout else []),
        nn.Linear(units, CLASSES),
    )


def task(build=net, **changes):
    return Task(build(), transforms=[augmentation()], **{"samples": 2, "sizes": build, **changes})


def run(rounds=3, the_task=None, data=None, **changes):
    common = {"chunks": CHUNKS, "cohort": 7, "seed": 3, "local": LocalSettings(0.3, batch_size=4)}
    common |= {"architectures": ARCHITECTURES} | changes
    data = data or shards(EXAMPLES)
    if not rounds:  # its start
        settings = FederationSettings(clients=len(data), **common)
        return Result(Federation(Protocol(the_task or task(), settings)), [])
    return federate(the_task or task(), data, rounds=rounds, **common)


class NestedMean:
    """The server's plain mean, number by number, over the clients that have each number; written out."""

    def __init__(self, module):
        self.parameters = list(module.parameters())
        self.values = [p.detach().clone() for p in self.parameters]
        self.sums, self.counts = ([torch.zeros_like(v) for v in self.values] for _ in range(2))

    def part(self, places):
        """A client's own copy of the numbers at its places, one of each parameter."""
        return [v[place].clone().requires_grad_() for v, place in zip(self.values, places, strict=True)]

    def add(self, places, changes, weight, masks=None):
        """Counts a client's changes, where its masks are 1."""
        masks = masks or [torch.ones_like(change) for change in changes]
        for i, (place, change, mask) in enumerate(zip(places, changes, masks, strict=True)):
            self.sums[i][place] += weight * mask * change
            self.counts[i][place] += weight * mask

    def step(self):
        with torch.no_grad():
            for parameter, total, count in zip(self.parameters, self.sums, self.counts, strict=True):
                parameter.add_(torch.where(count > 0, total / count, 0.0))


def first(units):
    """Places of the first hidden units in a network of two linear layers."""
    units = slice(units)
    return [(units,), (units,), (slice(None), units), (slice(None),)]


def stepped(part, loss, rate=0.3):
    """One step of a client's numbers along the gradient, in place."""
    gradients = torch.autograd.grad(loss, part)
    with torch.no_grad():
        for parameter, gradient in zip(part, gradients, strict=True):
            parameter -= rate * gradient
