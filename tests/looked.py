"""Networks with a forward of one's own, trained here and by plain PyTorch, and what is said of them."""

import copy

import refusals
import torch
from problems import after, settings
from torch import nn
from torch.nn import functional as F

import fedpart

ROUNDS, RATE, CLIENTS, EACH = 3, 0.5, 2, 12
REFUSED = (ValueError, fedpart.ClientError)
CHANGES = "is changed in forward\\(\\), which would carry"
DRAWS = "draws random numbers in the backward pass, .*; draw in forward"
LOST = "forward\\(\\) changes '{}', a change that is lost after the pass, .*register_parametrization"


def data():
    """Of two clients, 12 examples each."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(CLIENTS, EACH, 6, generator=generator)
    return inputs, torch.randint(3, (CLIENTS, EACH), generator=generator)


class Net(nn.Module):
    """Two layers, and a forward of one's own; what is ``kept`` is an attribute, or makes one."""

    def __init__(self, forward, **kept):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        self.w = nn.Parameter(torch.randn(6, 3))
        self.call = forward
        for name, value in kept.items():
            setattr(self, name, value(self) if callable(value) else value)

    def forward(self, x):
        return self.call(self, x)


class Buffered(Net):
    def __init__(self, forward, **kept):
        super().__init__(forward, **kept)
        self.register_buffer("buffer", torch.ones(3))


def plainly(net, x):
    return net.b(torch.tanh(net.a(x)))


def plain(net):
    """Federated averaging as a loop over copies, whose only step sees all examples of a client."""
    inputs, targets = data()
    for _ in range(ROUNDS):
        clients = [copy.deepcopy(net) for _ in range(CLIENTS)]
        for client, x, y in zip(clients, inputs.clone(), targets, strict=True):
            optimiser = torch.optim.SGD(client.parameters(), RATE)
            F.cross_entropy(client(x), y).backward()
            optimiser.step()
        with torch.no_grad():
            for own, *others in zip(net.parameters(), *(one.parameters() for one in clients), strict=True):
                own.copy_(torch.stack(others).mean(0))
    return dict(net.named_parameters())


def ours(net, execution="loop", samples=1, rounds=ROUNDS):
    inputs, targets = data()
    options = {"chunks": (1.0,), "method": "fedavg", "server": fedpart.SGDSettings(1.0)}
    chosen = settings(CLIENTS, local=fedpart.LocalSettings(RATE, 64), **options)
    federation = fedpart.Federation(fedpart.Protocol(fedpart.Task(net, samples=samples), chosen))
    shards = [fedpart.Dataset(x, y) for x, y in zip(inputs, targets, strict=True)]
    after(rounds, federation, shards, execution=execution)
    assert torch.equal(inputs, data()[0]), "the caller's examples stay as they are"
    return federation.partition.materialise(federation.w, 1)


def assert_as_in_pytorch(make, execution="loop"):
    found = ours(make(), execution)
    for name, value in plain(make()).items():
        torch.testing.assert_close(found[name].detach(), value.detach(), atol=1e-6, rtol=1e-6)


def check(rows, execution="loop", error=REFUSED, rounds=ROUNDS):
    """Networks, and what is said of each."""
    refusals.check(
        (f"{number}: {says}", lambda net=net: ours(net, execution, rounds=rounds), error, says)
        for number, (net, says) in enumerate(rows)
    )
