"""The psi gradient of the loss against central differences in float64, for every hyperparameter.

The noise is fixed by its key, so the loss is a deterministic function of psi, piecewise smooth: bilinear
interpolation, ReLU and max-pooling have kinks. A step of 1e-6 crosses the kink of a given pixel with a
probability of about 1e-5; the few thousand pixels here are fixed by the seeds and none is crossed. Rounding
contributes 1e-16 / 1e-6 = 1e-10 and the third derivative 1e-12: hence 1e-6 of the largest component.
"""

import pytest
import torch
from finite_differences import assert_psi_gradient
from torch import nn

import fedpart
from fedpart import AffineAugmentation, HyperModule, Task
from fedpart.nn.models import digits_cnn


class Blur(HyperModule):
    """A transform of one's own: mixes each image with its mean by a learned, random amount."""

    hyperparameters = ("strength", "mix.weight")

    def __init__(self):
        super().__init__()
        self.strength = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.mix = nn.Linear(1, 1, bias=False)

    def forward(self, x):
        low, high = self.strength
        amount = torch.sigmoid(low + (high - low) * fedpart.uniform((len(x), 1, 1, 1), like=x))
        return (1 - amount) * x + amount * self.mix(x.mean((1, 2, 3), keepdim=True))


class NoisyScale(HyperModule):
    """A layer of one's own: multiplicative Gaussian noise of learned size on each channel."""

    hyperparameters = ("log_std",)

    def __init__(self, channels):
        super().__init__()
        self.log_std = nn.Parameter(torch.full((channels,), -1.0))

    def forward(self, x):
        shape = (len(x), x.shape[1], *[1] * (x.ndim - 2))
        return x * (1 + self.log_std.exp().view(shape[1:]) * fedpart.normal(shape, like=x))


def smooth_images(n=3, size=8):
    generator = torch.Generator().manual_seed(0)
    grid = torch.linspace(0, 1, size, dtype=torch.float64)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    a, b, c = torch.rand(3, n, 1, 1, 1, generator=generator, dtype=torch.float64)
    return torch.sin(3 * a * x + 4 * b * y + 6 * c) + c


def smooth_network():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 5))


def own_layers():
    body = nn.Conv2d(1, 4, 3), NoisyScale(4), nn.GELU(), nn.AvgPool2d(2), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(36, 5), NoisyScale(5))


def norm_network():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5))


def cnn():
    return digits_cnn(num_classes=5, input_shape=(1, 8, 8), temperature=0.3)


def affine(family="minmax", initial=0.2, **options):
    return {"transforms": [AffineAugmentation(family, initial=initial, **options)]}


BORDER = {"align_corners": False, "padding": "border"}
ALL = {"transforms": [AffineAugmentation(initial=0.1), Blur()], "hyperparameters": ["0.bias"]}
CASES = {
    "minmax": (smooth_network, affine()),
    "schwobel": (smooth_network, affine("schwobel")),
    "minmax without align_corners": (smooth_network, affine(initial=0.3, **BORDER)),
    "log-probabilities": (smooth_network, affine() | {"average": "log_probabilities"}),
    "centred": (smooth_network, affine("centred")),
    "augerino": (smooth_network, {"transforms": [AffineAugmentation("augerino")]}),
    "dropout": (cnn, {}),
    "dropout, probabilities": (cnn, {"average": "probabilities"}),
    "dropout and affine": (cnn, affine(initial=0.1)),
    "shared mask": (cnn, {"share_dropout_mask": True}),
    "a module's own parameters": (smooth_network, {"hyperparameters": ["0.*"]}),
    "a norm's parameters": (norm_network, {"hyperparameters": ["1.*"]}),
    "a transform of one's own": (smooth_network, {"transforms": [Blur()]}),
    "a layer of one's own": (own_layers, {}),
    "all at once": (own_layers, ALL | {"average": "probabilities"}),
}


@pytest.mark.parametrize("case", CASES)
def test_against_finite_differences(case):
    torch.manual_seed(0)
    network, options = CASES[case]
    task = Task(network(), samples=3, precision="fp64", **options)
    assert_psi_gradient(task, smooth_images())
