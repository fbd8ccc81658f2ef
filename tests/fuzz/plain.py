"""Two rounds of federated averaging in plain PyTorch: an independent witness that imports nothing of ours."""

import torch
from torch.nn import functional as F


def steps(net, inputs, targets, batches, rate):
    """One client's training in place; a batch is a copy, as from a DataLoader."""
    optimiser = torch.optim.SGD(net.parameters(), lr=rate)
    for places in batches:
        optimiser.zero_grad()
        F.cross_entropy(net(inputs[places]), targets[places]).backward()
        optimiser.step()


def load(net, weights):
    """The server's values into a network of the client's own."""
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(weights[name])


def values(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def averaged(make, shards, orders, rate):
    """The server's weights by name, and the network with them.

    Args:
        make: builds the network; each client builds its own in each round, since deepcopy would leave
            closures, and carry what a network keeps to others.
        orders: of each round the clients' batches.
    """
    server = values(make())
    for order in orders:
        total = {name: torch.zeros_like(value) for name, value in server.items()}
        for (inputs, targets), batches in zip(shards, order, strict=True):
            net = make()
            load(net, server)
            steps(net, inputs, targets, batches, rate)
            for name, value in values(net).items():
                total[name] += (value - server[name]) * len(targets)
        examples = sum(len(targets) for _, targets in shards)
        server = {name: value + total[name] / examples for name, value in server.items()}
    net = make()
    load(net, server)
    return server, net.eval()
