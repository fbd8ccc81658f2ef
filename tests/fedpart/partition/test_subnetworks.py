"""Layers that cannot be partitioned are refused; subnetworks of others are those built by hand."""

import re
import warnings
from functools import partial
from itertools import product

import pytest
import refusals
import torch
from adapted import NormAndReLU
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from fedpart import AffineAugmentation, HyperModule, ParameterSpace, RandomPartition, Task
from fedpart.partition.inspection import check_supported

U = (0.5, 0.3, 0.2)
NORMS = (nn.GroupNorm, nn.LayerNorm)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.norm(self.block(self.embed(tokens))))


class OwnBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.randn(5, 8))
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8, bias=False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        return x @ self.embed.weight.T


class ResNetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, stride=2, bias=False)
        self.norm1 = nn.GroupNorm(4, 8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, 8)
        self.skip = nn.Sequential(nn.Conv2d(3, 8, 1, stride=2), nn.GroupNorm(2, 8))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        h = F.relu(self.norm1(self.conv1(x)))
        h = F.relu(self.norm2(self.conv2(h)) + self.skip(x))
        return self.fc(h.mean((2, 3)))


def hand_built(module, own, default, assignment, k, chunks):
    """A plain module with the numbers of subnetwork k; walks the flat vectors by itself."""
    plain = type(module)().to(torch.float64)
    owner = {name: plain.get_submodule(name.rpartition(".")[0]) for name, _ in plain.named_parameters()}
    offset = 0
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            n = parameter.numel()
            if isinstance(owner[name], NORMS):
                total = torch.ones(n) if name.endswith("weight") else torch.zeros(n)
                for j in range(1, chunks + 1):
                    copy = (own if j <= k else default)[offset : offset + n]
                    total = total * copy if name.endswith("weight") else total + copy
                    assert (assignment[offset : offset + n] == j).all()
                    offset += n
                parameter.copy_(total.view_as(parameter))
            else:
                trained = assignment[offset : offset + n] <= k
                values = torch.where(trained, own[offset : offset + n], default[offset : offset + n])
                parameter.copy_(values.view_as(parameter))
                offset += n
    assert offset == len(own)
    return plain


@pytest.mark.parametrize(
    "cls, defaults", [*product((Language, ResNetBlock), ("initial", "zeros")), (OwnBlock, "zeros")]
)
def test_every_subnetwork(cls, defaults):
    torch.manual_seed(0)
    module = cls().to(torch.float64)
    with torch.no_grad():  # norms do not start at one and zero, so that their default matters
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    partition = RandomPartition(ParameterSpace(module, 3), U, defaults=defaults, seed=1)
    initial = partition.space.initial()
    own = initial + 0.3 * torch.randn_like(initial)
    w = partition.to_partition_order(own)
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64) if cls is ResNetBlock else torch.randint(11, (4, 5))
    seen = []
    for k in range(1, 4):
        plain = hand_built(module, own, partition.default, partition.assignment, k, 3)
        for mode in (True, False):
            plain.train(mode)
            module.train(mode)
            with torch.no_grad():
                out = functional_call(module, partition.materialise(w, k), (x,))
                torch.testing.assert_close(out, plain(x), rtol=1e-12, atol=1e-12)
        seen.append(out)
    assert not torch.allclose(seen[0], seen[1]) and not torch.allclose(seen[1], seen[2])
    assert torch.equal(partition.space.initial(), initial)


def test_gradients_of_a_subnetwork():
    """Of w_j through subnetwork k: those of the hand-built network where j <= k, and none beyond."""
    torch.manual_seed(0)
    module = Language().to(torch.float64)
    partition = RandomPartition(ParameterSpace(module, 3), U, seed=1)
    own = partition.space.initial() + 0.3 * torch.randn(partition.space.size, dtype=torch.float64)
    x = torch.randint(11, (4, 5))
    w = partition.to_partition_order(own).requires_grad_()
    functional_call(module, partition.materialise(w, 2), (x,)).square().sum().backward()
    gradient = partition.to_own_order(w.grad)
    assert (gradient[partition.assignment == 3] == 0).all()
    plain = hand_built(module, own, partition.default, partition.assignment, 2, 3)
    plain(x).square().sum().backward()
    for entry in partition.space.entries:
        if entry.copies == 1:
            places = slice(entry.offset, entry.offset + entry.size)
            trained = partition.assignment[places] <= 2
            expected = plain.get_parameter(entry.name).grad.reshape(-1)
            torch.testing.assert_close(gradient[places][trained], expected[trained], rtol=1e-9, atol=1e-9)
    for copy in (1, 2):  # d(s1 * s2)/ds1 = s2
        entry = next(e for e in partition.space.entries if e.name == "norm.weight")
        start = entry.offset + (copy - 1) * 8
        other = own[entry.offset + (2 - copy) * 8 :][:8]
        expected = plain.norm.weight.grad * other
        torch.testing.assert_close(gradient[start : start + 8], expected, rtol=1e-9, atol=1e-9)


def attention(dropout):
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout)


def old_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


GROUP = re.escape('use module = fedpart.replace_batchnorm(module, "group"), or "frozen"')
LAZY = r"run one batch through the module first: module\(inputs\[:2\]\)"
OWN = r"batch statistics .*; call layer.eval\(\) if it is pretrained, or put"
OLD = r"call torch.nn.utils.remove_{}\(layer\)"
REFUSED = [
    (nn.BatchNorm2d(4), f"BatchNorm2d at '1' .* {GROUP}"),
    (nn.BatchNorm1d(4, track_running_stats=False), f"BatchNorm1d .* {GROUP}"),
    (nn.SyncBatchNorm(4), f"SyncBatchNorm .* {GROUP}"),
    (
        nn.InstanceNorm2d(4, track_running_stats=True),
        r"running statistics .* use nn.InstanceNorm2d\(4, affine=False, track_running_stats=False\)",
    ),
    (nn.Embedding(5, 4, max_norm=1.0), "in place; set layer.max_norm = None, and normalise"),
    (nn.EmbeddingBag(5, 4, max_norm=1.0), "EmbeddingBag .* set layer.max_norm = None"),
    (nn.LazyLinear(4), LAZY),
    (
        spectral_norm(nn.Linear(4, 4)),
        r"updates its vectors .*; call torch.*parametrize.remove_parametrizations\(layer, \"weight\"\)",
    ),
    (spectral_norm(nn.Linear(4, 4)).requires_grad_(False), "spectral_norm updates its vectors"),
    (spectral_norm(nn.Linear(4, 4)).eval(), "spectral_norm updates its vectors"),
    (nn.utils.spectral_norm(nn.Linear(4, 4)), f"updates its vectors .*; {OLD.format('spectral_norm')}"),
    (
        old_weight_norm(nn.Linear(4, 4)),
        rf"{OLD.format('weight_norm')}, and then torch.nn.utils.parametrizations.weight_norm\(layer\)",
    ),
    (nn.LazyBatchNorm1d(), LAZY),
    (nn.LazyBatchNorm1d(affine=False).eval(), LAZY),
    (
        nn.Linear(4, 4, dtype=torch.complex64),
        r"'weight' is complex; train layer.weight = nn.Parameter\(torch.view_as_real\(layer.weight.",
    ),
    (NormAndReLU(4), OWN),
    (NormAndReLU(4).requires_grad_(False), OWN),
]


class Blur(HyperModule):
    hyperparameters = ("strength",)

    def __init__(self):
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(1.0))
        self.norm = nn.BatchNorm2d(3)


def test_refused():
    """At once, not in the first round; wherever the layers are, and all of them."""
    calls = {"a space": lambda module: ParameterSpace(module, 2), "a task": Task}
    rows = [
        (f"{number}: {of} of {layer}", partial(call, nn.Sequential(nn.Linear(4, 4), layer)), says)
        for number, (layer, says) in enumerate(REFUSED)
        for of, call in calls.items()
    ]
    norm, norms = "BatchNorm1d at the top level cannot be partitioned", [nn.BatchNorm1d(3) for _ in range(2)]
    several = nn.Sequential(norms[0], nn.Linear(3, 3), norms[1], nn.Embedding(5, 4, max_norm=1.0))
    transforms = [AffineAugmentation(), Blur()]
    rows += [
        ("the top level", partial(check_supported, nn.BatchNorm1d(3)), norm),
        ("several", partial(Task, several), r"BatchNorm1d at '0' \(and 1 more\) .*; Embedding at '3' cannot"),
        ("a transform", lambda: Task(nn.Linear(2, 2), transforms=transforms), "'norm' .* batch statistics"),
    ]
    refusals.check((*row, ValueError, says) for *row, says in rows)


@pytest.mark.parametrize(
    "layer",
    [
        attention(0.1),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.Dropout(0.1),
        nn.RReLU(),
        nn.ReLU(inplace=True),
        nn.LSTM(4, 4),
        nn.Embedding(5, 4, sparse=True),
        nn.InstanceNorm2d(4, affine=True),
        nn.InstanceNorm2d(4),
        nn.Embedding(5, 4),
        nn.ReLU(),
        nn.GRUCell(4, 4),
        weight_norm(nn.Linear(4, 4)),
        nn.Linear(4, 4, dtype=torch.complex64).requires_grad_(False),
        nn.InstanceNorm1d(4, track_running_stats=True).eval(),
        spectral_norm(nn.Linear(4, 4)).requires_grad_(False).eval(),
        nn.utils.spectral_norm(nn.Linear(4, 4)).requires_grad_(False).eval(),
        NormAndReLU(4).eval(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_accepted(layer):
    ParameterSpace(nn.Sequential(nn.Linear(4, 4), layer), 2)
