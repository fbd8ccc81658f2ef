"""Layers that cannot be partitioned are refused, with what to use instead; harmless relatives are not."""

import pytest
import torch
from torch import nn

from fedpart import AffineAugmentation, HyperModule, ParameterSpace, Task
from fedpart.parameters.inspection import check_supported


def attention(dropout):
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout)


REFUSED = {
    "batch_norm": (nn.BatchNorm2d(4), "BatchNorm2d at '1' .* use GroupNorm or LayerNorm"),
    "batch_norm_without_statistics": (
        nn.BatchNorm1d(4, track_running_stats=False),
        "BatchNorm1d .* tie examples together; use GroupNorm or LayerNorm",
    ),
    "sync_batch_norm": (nn.SyncBatchNorm(4), "SyncBatchNorm .* use GroupNorm"),
    "instance_norm": (nn.InstanceNorm2d(4, track_running_stats=True), "running statistics .* use GroupNorm"),
    "embedding": (nn.Embedding(5, 4, max_norm=1.0), "in place; use max_norm=None and normalise the output"),
    "embedding_bag": (nn.EmbeddingBag(5, 4, max_norm=1.0), "EmbeddingBag .* use max_norm=None"),
    "relu": (nn.ReLU(inplace=True), "ReLU at '1' .* works in place; use inplace=False"),
    "dropout": (nn.Dropout(0.1), "not reproducible; use fedpart.ConcreteDropout .*, or p=0"),
    "dropout2d": (nn.Dropout2d(0.1), "use fedpart.ConcreteDropout"),
    "alpha_dropout": (nn.AlphaDropout(0.1), "use fedpart.ConcreteDropout"),
    "rrelu": (nn.RReLU(), "use LeakyReLU"),
    "fractional_pool": (nn.FractionalMaxPool2d(2, output_size=2), "use MaxPool"),
    "attention": (nn.MultiheadAttention(4, 2, dropout=0.1), "use dropout=0 and a fedpart.ConcreteDropout"),
    "transformer": (attention(0.1), "MultiheadAttention at '1.self_attn' .* use dropout=0"),
    "lstm": (nn.LSTM(4, 4), "LSTM .* use attention or convolutions"),
    "lazy": (nn.LazyLinear(4), "run one batch through the module first"),
    "spectral_norm": (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        "updates its vectors in every forward pass; use weight_norm",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    layer, message = REFUSED[case]
    module = nn.Sequential(nn.Linear(4, 4), layer)
    with pytest.raises(ValueError, match=message):
        ParameterSpace(module, 2)
    with pytest.raises(ValueError, match=message):  # at once, not in the first round
        Task(module)


def test_at_the_top_level():
    with pytest.raises(ValueError, match="BatchNorm1d at the top level cannot be partitioned"):
        check_supported(nn.BatchNorm1d(3))


@pytest.mark.parametrize(
    "layer",
    [
        attention(0.0),
        nn.MultiheadAttention(4, 2),
        nn.Dropout(0.0),
        nn.InstanceNorm2d(4, affine=True),
        nn.InstanceNorm2d(4),
        nn.Embedding(5, 4),
        nn.ReLU(),
        nn.GRUCell(4, 4),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_accepted(layer):
    ParameterSpace(nn.Sequential(nn.Linear(4, 4), layer), 2)


def test_transforms_are_inspected_as_well():
    class Blur(HyperModule):
        hyperparameters = ("strength",)

        def __init__(self):
            super().__init__()
            self.strength = nn.Parameter(torch.tensor(1.0))
            self.drop = nn.Dropout(0.5)

    with pytest.raises(ValueError, match=r"Dropout at 'drop' .* not reproducible"):
        Task(nn.Linear(2, 2), transforms=[AffineAugmentation(), Blur()])
