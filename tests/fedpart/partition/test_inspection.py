"""Layers that cannot be partitioned are refused, with what to use instead; harmless relatives are not."""

import re
import warnings
from functools import partial

import pytest
import refusals
import torch
from torch import nn

from fedpart import AffineAugmentation, HyperModule, ParameterSpace, Task
from fedpart.partition.inspection import check_supported


def attention(dropout):
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout)


def old_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


class NormAndReLU(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x).relu()


GROUP = re.escape('use module = fedpart.replace_batchnorm(module, "group"), or "frozen"')
REFUSED = {
    "batch_norm": (nn.BatchNorm2d(4), f"BatchNorm2d at '1' .* {GROUP}"),
    "batch_norm_without_statistics": (
        nn.BatchNorm1d(4, track_running_stats=False),
        f"BatchNorm1d .* {GROUP}",
    ),
    "sync_batch_norm": (nn.SyncBatchNorm(4), f"SyncBatchNorm .* {GROUP}"),
    "instance_norm": (
        nn.InstanceNorm2d(4, track_running_stats=True),
        r"running statistics .* use nn.InstanceNorm2d\(4, affine=False, track_running_stats=False\)",
    ),
    "embedding": (nn.Embedding(5, 4, max_norm=1.0), "in place; set layer.max_norm = None, and normalise"),
    "embedding_bag": (nn.EmbeddingBag(5, 4, max_norm=1.0), "EmbeddingBag .* set layer.max_norm = None"),
    "lazy": (nn.LazyLinear(4), r"run one batch through the module first: module\(inputs\[:2\]\)"),
    "spectral_norm": (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        r"updates its vectors .*; call torch.*parametrize.remove_parametrizations\(layer, \"weight\"\)",
    ),
    "spectral_norm_of_frozen_weights_that_trains": (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).requires_grad_(False),
        "spectral_norm updates its vectors",
    ),
    "spectral_norm_at_rest_of_trained_weights": (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval(),
        "spectral_norm updates its vectors",
    ),
    "old_spectral_norm": (
        nn.utils.spectral_norm(nn.Linear(4, 4)),
        r"updates its vectors .*; call torch.nn.utils.remove_spectral_norm\(layer\)",
    ),
    "old_weight_norm": (
        old_weight_norm(nn.Linear(4, 4)),
        r"call torch.nn.utils.remove_weight_norm\(layer\), and then "
        r"torch.nn.utils.parametrizations.weight_norm\(layer\)",
    ),
    "lazy_batch_norm": (nn.LazyBatchNorm1d(), r"run one batch .* first: module\(inputs\[:2\]\)"),
    "lazy_batch_norm_at_rest": (
        nn.LazyBatchNorm1d(affine=False).eval(),
        r"run one batch .* first: module\(inputs\[:2\]\)",
    ),
    "complex": (
        nn.Linear(4, 4, dtype=torch.complex64),
        r"'weight' is complex; train layer.weight = nn.Parameter\(torch.view_as_real\(layer.weight.",
    ),
    "own_forward": (NormAndReLU(4), r"batch statistics .*; call layer.eval\(\) if it is pretrained, or put"),
    "own_forward_of_frozen_weights_that_trains": (
        NormAndReLU(4).requires_grad_(False),
        r"batch statistics .*; call layer.eval\(\) if it is pretrained, or put",
    ),
}


class Blur(HyperModule):
    hyperparameters = ("strength",)

    def __init__(self):
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(1.0))
        self.norm = nn.BatchNorm2d(3)


def test_refused():
    """At once, not in the first round; wherever the layers are, and all of them."""
    modules = {case: nn.Sequential(nn.Linear(4, 4), layer) for case, (layer, _) in REFUSED.items()}
    rows = [(case, partial(ParameterSpace, module, 2), REFUSED[case][1]) for case, module in modules.items()]
    rows += [
        (f"a task of {case}", partial(Task, module), REFUSED[case][1]) for case, module in modules.items()
    ]
    norm, norms = "BatchNorm1d at the top level cannot be partitioned", [nn.BatchNorm1d(3) for _ in range(2)]
    several = nn.Sequential(norms[0], nn.Linear(3, 3), norms[1], nn.Embedding(5, 4, max_norm=1.0))
    transforms = [AffineAugmentation(), Blur()]
    rows += [
        ("the top level", partial(check_supported, nn.BatchNorm1d(3)), norm),
        ("several", partial(Task, several), r"BatchNorm1d at '0' \(and 1 more\) .*; Embedding at '3' cannot"),
        (
            "a transform",
            lambda: Task(nn.Linear(2, 2), transforms=transforms),
            "BatchNorm2d at 'norm' .* batch statistics",
        ),
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
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.Linear(4, 4, dtype=torch.complex64).requires_grad_(False),
        nn.InstanceNorm1d(4, track_running_stats=True).eval(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).requires_grad_(False).eval(),
        nn.utils.spectral_norm(nn.Linear(4, 4)).requires_grad_(False).eval(),
        NormAndReLU(4).eval(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_accepted(layer):
    ParameterSpace(nn.Sequential(nn.Linear(4, 4), layer), 2)
