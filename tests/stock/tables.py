"""Networks over columns: scikit-learn's data, several parts of inputs, a loss of one's own, compiled blocks."""

from functools import cache

import torch
from sklearn.datasets import load_diabetes
from stock.kinds import Stock, classes, numbers, of_classes, of_numbers
from torch import nn
from torch.func import functional_call


@cache
def diabetes():
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


def of_itself(module, named, psi, inputs, targets):
    return functional_call(module, {**named, "log_width": psi[0]}, (inputs, targets))["loss"].mean()


def compiled(dropout):
    """Blocks that are compiled for speed."""
    block = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(dropout))
    net = nn.Sequential(torch.compile(block), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1))
    net[1].compile()
    return net


def of_compiled(module, named, psi, inputs, targets):
    """The same network as it was before it was compiled, for the compiler would take minutes."""
    plain = nn.Sequential(module[0]._orig_mod, nn.Linear(16, 16).to(inputs), module[2], module[3])
    return of_numbers(plain, named, psi, inputs, targets)


TABLES = {
    "MLP, scikit-learn": Stock(mlp, patients, numbers, of_numbers),
    "dict inputs": Stock(TwoTowers, customers, classes, of_classes),
    "own loss": Stock(Laplacian, patients, own, of_itself),
    "compiled blocks": Stock(compiled, patients, numbers, of_compiled),
}
