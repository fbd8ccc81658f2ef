"""FedAvg with a server-side Adam (Reddi et al. 2020) on a plain nn.Module: an independent witness.

Nothing of fedpart is imported here; the caller says who takes part and in which order examples are visited.
"""

import copy

import torch
from torch.nn import functional as F

BLOCKS = 256  # cohort positions are summed in at most this many contiguous blocks


def local_training(module, inputs, targets, batches, **sgd):
    """Change of each parameter by SGD over ``batches``, a list of index tensors."""
    local = copy.deepcopy(module)
    optimiser = torch.optim.SGD(local.parameters(), **sgd)
    for places in batches:
        optimiser.zero_grad()
        F.cross_entropy(local(inputs[places]), targets[places]).backward()
        optimiser.step()
    pairs = zip(local.parameters(), module.parameters(), strict=True)
    return [(after - before).detach() for after, before in pairs]


def weighted_sum(terms):
    """Left to right: ``terms`` are lists of tensors."""
    total = [tensor.clone() for tensor in terms[0]]
    for term in terms[1:]:
        for into, tensor in zip(total, term, strict=True):
            into += tensor
    return total


def federated_averaging(module, shards, rounds, *, server_learning_rate, **sgd):
    """Train ``module`` in place; ``sgd`` goes to torch.optim.SGD.

    ``shards[client]`` is (inputs, targets); each of ``rounds`` is a list of (client, batches), one per cohort
    position. Yields the parameters after every round.
    """
    server = torch.optim.Adam(module.parameters(), lr=server_learning_rate)
    for cohort in rounds:
        terms = []
        for client, batches in cohort:
            inputs, targets = shards[client]
            deltas = local_training(module, inputs, targets, batches, **sgd)
            terms.append([delta * len(targets) for delta in deltas])
        n, count = len(terms), min(BLOCKS, len(terms))
        sums = [weighted_sum(terms[n * b // count : n * (b + 1) // count]) for b in range(count)]
        examples = sum(len(shards[client][1]) for client, _ in cohort)
        for parameter, total in zip(module.parameters(), weighted_sum(sums), strict=True):
            parameter.grad = -(total / examples)
        server.step()
        yield {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
