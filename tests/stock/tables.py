"""Networks over columns: of scikit-learn's data, of parts by name, with a loss of its own, compiled."""

from functools import cache

import torch
from torch import nn

from stock.kinds import Stock, classes, numbers, of_classes, of_numbers


@cache
def diabetes():
    from sklearn.datasets import load_diabetes

    inputs, targets = map(torch.from_numpy, load_diabetes(return_X_y=True))
    return (20 * inputs).float(), ((targets - targets.mean()) / targets.std()).float()


def patients(examples, generator):
    inputs, targets = diabetes()
    some = torch.randperm(len(targets), generator=generator)[:examples]
    return inputs[some], targets[some]


def mlp(dropout):
    return nn.Sequential(
        nn.Linear(10, 16), nn.LayerNorm(16), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(16, 1)
    )


def customers(examples, generator):
    amounts = torch.randn(examples, 5, generator=generator)
    kind = torch.randint(4, (examples,), generator=generator)
    known = torch.rand(examples, 5, generator=generator) < 0.8
    return {"amounts": amounts, "kind": kind, "known": known}, kind % 3


class TwoTowers(nn.Module):
    """Takes its parts by name."""

    def __init__(self, dropout):
        super().__init__()
        self.amounts, self.kind = nn.Linear(5, 8), nn.Embedding(4, 8)
        self.head = nn.Sequential(nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 3))

    def forward(self, kind, amounts, known):
        amounts = amounts.masked_fill(~known, 0.0)
        return self.head(torch.cat([self.amounts(amounts), self.kind(kind)], 1))


class Laplacian(nn.Module):
    """Returns its own loss, one of each row, where it is given the targets."""

    def __init__(self, dropout):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))
        self.log_width = nn.Parameter(torch.zeros(()))

    def forward(self, x, y=None):
        found = self.body(x).squeeze(1)
        if y is None:
            return {"logits": found}
        loss = (found - y).abs() * torch.exp(-self.log_width) + self.log_width
        return {"logits": found, "loss": loss}


def own():
    return {"likelihood": "from_model", "hyperparameters": ["log_width"]}


def blocks(dropout):
    block = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(dropout))
    return nn.Sequential(block, nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1))


def compiled(dropout):
    """The same, its first block compiled for speed."""
    net = blocks(dropout)
    net[0] = torch.compile(net[0])
    return net


TABLES = {
    "MLP, scikit-learn": Stock(mlp, patients, numbers, of_numbers),
    "dict inputs": Stock(TwoTowers, customers, classes, of_classes),
    "own loss": Stock(Laplacian, patients, own, None),
    "compiled blocks": Stock(compiled, patients, numbers, of_numbers, blocks),
}
