"""A federated round of partitioned networks (App. J) in plain torch: read this first.

Nothing of fedpart is imported here; the caller says who takes part and which number belongs to whom.
"""

import torch
from torch.func import functional_call
from torch.nn import functional as F


def tensors(module, flat):
    """Named weights of ``module`` from one vector."""
    named = trainable(module)
    parts = flat.split([p.numel() for p in named.values()])
    return {name: part.view_as(p) for (name, p), part in zip(named.items(), parts, strict=True)}


def trainable(module):
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def loss(module, transform, w, psi, inputs, targets):
    """Mean negative log-likelihood; psi are the hyperparameters of an input transform."""
    return F.cross_entropy(functional_call(module, tensors(module, w), (transform(inputs, psi),)), targets)


def partitioned(module, transform, psi, owner, shards, chunk, rounds, *, lr, server_lr, psi_lr):
    """Yields the weights and hyperparameters after every round; each of ``rounds`` is a list of clients.

    ``owner`` says of every weight to which partition 1..C it belongs, ``chunk`` of every client to which
    chunk. Each client takes one step along the gradient of its whole shard.
    """
    w = torch.nn.utils.parameters_to_vector(trainable(module).values()).detach().clone()
    default, chunks = w.clone(), int(owner.max())
    adams = [torch.optim.Adam([w], lr=server_lr) for _ in range(chunks)]  # one state per partition
    adam_psi = torch.optim.Adam([psi], lr=psi_lr)
    for cohort in rounds:
        change, weight = [torch.zeros_like(w) for _ in range(chunks)], [0] * chunks
        psi_sum, psi_weight = torch.zeros_like(psi), 0
        for client in cohort:
            (inputs, targets), k = shards[client], chunk[client]
            for j in range(k, chunks + 1):  # Eq. 25: train w_j through the subnetwork of w_1..w_j
                subnetwork = torch.where(owner <= j, w, default).requires_grad_()
                value = loss(module, transform, subnetwork, psi.detach(), inputs, targets)
                (gradient,) = torch.autograd.grad(value, subnetwork)
                change[j - 1] += -lr * len(targets) * torch.where(owner == j, gradient, 0)
                weight[j - 1] += len(targets)
            if k > 1:  # Eq. 26: w_1..w_(k-1) have not seen chunk k
                subnetwork, unseen = torch.where(owner < k, w, default), psi.detach().requires_grad_()
                value = loss(module, transform, subnetwork, unseen, inputs, targets)
                psi_sum += torch.autograd.grad(value, unseen)[0] * len(targets)
                psi_weight += len(targets)
        for j in range(1, chunks + 1):  # the server's Adam, along the mean change of those that trained w_j
            if weight[j - 1]:
                w.grad = -change[j - 1] / weight[j - 1]  # 0 elsewhere, where this Adam changes nothing
                adams[j - 1].step()
        if psi_weight:
            psi.grad = psi_sum / psi_weight
            adam_psi.step()
        yield w.clone(), psi.clone()
