"""FedAvg with a server-side Adam (Reddi et al. 2020) on a plain nn.Module: an independent witness.

Nothing of fedpart is imported here; the caller says who takes part and in which order examples are visited.
"""

import copy

import torch
from torch.nn import functional as F

BLOCKS = 256  # cohort positions are summed in at most this many contiguous blocks


def local_training(module, inputs, targets, batches, weight_decay=0.0, **sgd):
    """Change of each parameter by SGD over ``batches``, a list of index tensors; stepped as such."""
    local, before = copy.deepcopy(module), [p.detach() for p in module.parameters()]
    changes = [torch.zeros_like(p) for p in before]
    optimiser = torch.optim.SGD(changes, **sgd)
    for places in batches:
        loss = F.cross_entropy(local(inputs[places]), targets[places])
        gradients = torch.autograd.grad(loss, list(local.parameters()))
        for change, p, g in zip(changes, local.parameters(), gradients, strict=True):
            change.grad = g.add(p.detach(), alpha=weight_decay)
        optimiser.step()
        with torch.no_grad():
            for p, start, change in zip(local.parameters(), before, changes, strict=True):
                p.copy_(start + change)
    return changes


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
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    server = torch.optim.Adam([flat], lr=server_learning_rate, fused=True)
    for cohort in rounds:
        terms = []
        for client, batches in cohort:
            inputs, targets = shards[client]
            deltas = local_training(module, inputs, targets, batches, **sgd)
            terms.append([delta * len(targets) for delta in deltas])
        n, count = len(terms), min(BLOCKS, len(terms))
        sums = [weighted_sum(terms[n * b // count : n * (b + 1) // count]) for b in range(count)]
        examples = sum(len(shards[client][1]) for client, _ in cohort)
        flat.grad = torch.cat([-(total / examples).reshape(-1) for total in weighted_sum(sums)])
        server.step()
        torch.nn.utils.vector_to_parameters(flat, module.parameters())
        yield {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
