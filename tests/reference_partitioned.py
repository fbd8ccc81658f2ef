"""A federated round of partitioned networks (App. J) in plain torch: read this first.

Nothing of fedpart is imported here; the caller says who takes part and which number belongs to whom.
"""

import torch


def flattened(weights, folds, chunks):
    """Named weights as one vector; scale and bias of norms are there once per partition (App. I.2)."""
    parts = []
    for name, p in weights.items():
        others = torch.full((p.numel() * (chunks - 1),), float(folds.get(name) == "product"), dtype=p.dtype)
        parts += [p.detach().reshape(-1), others] if name in folds else [p.detach().reshape(-1)]
    return torch.cat(parts)


def named(weights, folds, chunks, flat):
    """The inverse: the vectors of all partitions are multiplied (scales) or added (biases)."""
    parts = flat.split([p.numel() * (chunks if name in folds else 1) for name, p in weights.items()])
    copies = {name: part.view(-1, *weights[name].shape) for name, part in zip(weights, parts, strict=True)}
    return {n: c.prod(0) if folds.get(n) == "product" else c.sum(0) for n, c in copies.items()}


def partitioned(loss, weights, folds, psi, owner, shards, chunk, cap, rounds, *, lr, server_lr, psi_lr):
    """Yields weights, hyperparameters and L_ML of every round; each of ``rounds`` is a list of clients.

    ``loss(named weights, psi, inputs, targets)`` is a mean over examples. ``owner`` is each number's
    partition 1..C, ``chunk`` each client's chunk, ``cap`` its last subnetwork. A client takes one step.
    """
    chunks = int(owner.max())
    w = flattened(weights, folds, chunks)
    default = w.clone()
    adams = [torch.optim.Adam([w], lr=server_lr) for _ in range(chunks)]  # one state per partition
    adam_psi = torch.optim.Adam([psi], lr=psi_lr)
    for cohort in rounds:
        change, weight = [torch.zeros_like(w) for _ in range(chunks)], [0] * chunks
        psi_sum, psi_weight, lml = torch.zeros_like(psi), 0, 0.0
        for client in cohort:
            (inputs, targets), k = shards[client], chunk[client]
            for j in range(k, cap[client] + 1):  # Eq. 25: train w_j through the subnetwork of w_1..w_j
                subnetwork = torch.where(owner <= j, w, default).requires_grad_()
                value = loss(named(weights, folds, chunks, subnetwork), psi.detach(), inputs, targets)
                (gradient,) = torch.autograd.grad(value, subnetwork)
                change[j - 1] += -lr * len(targets) * torch.where(owner == j, gradient, 0)
                weight[j - 1] += len(targets)
            if 1 < k <= cap[client] + 1:  # Eq. 26: w_1..w_(k-1) have not seen chunk k
                subnetwork, unseen = torch.where(owner < k, w, default), psi.detach().requires_grad_()
                value = loss(named(weights, folds, chunks, subnetwork), unseen, inputs, targets)
                psi_sum += torch.autograd.grad(value, unseen)[0] * len(targets)
                psi_weight += len(targets)
                lml -= value.item() * len(targets)
        for j in range(1, chunks + 1):  # the server's Adam, along the mean change of those that trained w_j
            if weight[j - 1]:
                w.grad = -change[j - 1] / weight[j - 1]  # 0 elsewhere, where this Adam changes nothing
                adams[j - 1].step()
        if psi_weight:
            psi.grad = psi_sum / psi_weight
            adam_psi.step()
        yield w.clone(), psi.clone(), lml / max(psi_weight, 1)
