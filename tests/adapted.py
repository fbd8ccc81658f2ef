"""Networks as people bring them: with draws of torch's own, recurrent, with parts that are frozen."""

import torch
from problems import CLASSES, SIZE, after, settings, shards
from torch import nn
from torch.nn import functional as F

from fedpart import Federation, LocalSettings, Protocol, Task

SIZES = (3, 7, 4, 9, 2, 6)


class Applied(nn.Module):
    """Two linear layers, and a function of the layer and of what is between them."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first, self.last = nn.Linear(SIZE**2, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(self.function(self, torch.tanh(self.first(x.flatten(1)))))


def dropped(layer, x):
    return F.dropout(x, 0.3, layer.training)


def stochastic_depth(layer, x):
    """As torchvision has it, in mode "row"."""
    if not layer.training:
        return x
    noise = torch.empty([len(x), 1], dtype=x.dtype, device=x.device)
    noise = noise.bernoulli_(0.7)
    return x + x.sin() * noise.div_(0.7)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(
            SIZE, 2, 12, dropout=0.2, activation=nn.ReLU(inplace=True), batch_first=True
        )
        self.encoder, self.last = nn.TransformerEncoder(layer, 2), nn.Linear(SIZE, CLASSES)

    def forward(self, x):
        return self.last(self.encoder(x.squeeze(1)).mean(1))


class Recurrent(nn.Module):
    """Rows of an image as a sequence; packed: as many of them as the image itself says."""

    def __init__(self, kind=nn.LSTM, dropout=0.3, packed=False):
        super().__init__()
        torch.manual_seed(0)
        self.packed = packed
        self.body = kind(SIZE, 4, 2, dropout=dropout, bidirectional=True, batch_first=True)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = x.squeeze(1)
        if not self.packed:
            return self.last(self.body(x)[0].sum(1))
        lengths = 1 + (7 * x.sum((1, 2))).long().remainder(SIZE).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.last(nn.utils.rnn.pad_packed_sequence(self.body(packed)[0], batch_first=True)[0].sum(1))


class Named(nn.Module):
    """Adds two inputs of three numbers before a layer; a function of its outputs is returned."""

    def __init__(self, returned=lambda out: out):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.returned = nn.Linear(3, 4), returned

    def forward(self, a, b):
        return self.returned(self.linear(a + b))


class Single(Named):
    def forward(self, x):
        return super().forward(x, torch.zeros_like(x))


class NormAndReLU(nn.BatchNorm2d):
    """As some libraries have it: more than its base class does."""

    def forward(self, x):
        return super().forward(x).relu()


def module(forward):
    """One without weights."""
    net = nn.Module()
    net.forward = forward
    return net


def chain(*middle):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        *middle,
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * SIZE**2, 8),
        nn.Tanh(),
        nn.Linear(8, CLASSES),
    )


def frozen_body():
    """A convolution that is given, and a head that is trained."""
    net = chain()
    net[0].requires_grad_(False)
    return net


def frozen_norm():
    """BatchNorm with statistics that are given; scale and bias are trained."""
    norm = nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))
        norm.running_var.copy_(torch.tensor([0.5, 1.5, 1.0, 2.0]))
    net = chain(norm)
    norm.eval()
    return net


def lstm_without_dropout():
    return Recurrent(dropout=0.0)


DRAWING = {
    "F.dropout": lambda: Applied(dropped),
    "nn.Dropout2d": lambda: chain(nn.Dropout2d(0.3)),
    "transformer": Attending,
    "stochastic depth": lambda: Applied(stochastic_depth),
    "LSTM": Recurrent,
    "GRU": lambda: Recurrent(nn.GRU),
    "packed LSTM": lambda: Recurrent(packed=True),
}


def trained(net, rounds=2, workers=1, execution="loop", data=None, of=None, **changes):
    """The federation after some rounds of partitioned training; ``of`` are the options of the task."""
    task = Task(net, **{"samples": 2, "precision": "fp64", **(of or {})})
    data = shards(SIZES) if data is None else data
    local = LocalSettings(learning_rate=0.3)
    chosen = settings(len(data), **{"chunks": (0.5, 0.3, 0.2), "local": local, **changes})
    return after(rounds, Federation(Protocol(task, chosen)), data, workers, execution)[0]
