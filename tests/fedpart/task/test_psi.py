"""Which parameters are hyperparameters, their names and units; psi gradients against central differences.

The noise is fixed by its key, so the loss is a deterministic function of psi, piecewise smooth: bilinear
interpolation, ReLU and max-pooling have kinks. A step of 1e-6 crosses the kink of a given pixel with a
probability of about 1e-5; the few thousand pixels here are fixed by the seeds and none is crossed. Rounding
contributes 1e-16 / 1e-6 = 1e-10 and the third derivative 1e-12: hence 1e-6 of the largest component.
"""

import pytest
import torch
from finite_differences import assert_psi_gradient
from problems import Shift, initial
from torch import nn

import fedpart
from fedpart import AffineAugmentation, ConcreteDropout, HyperModule, Task
from fedpart.nn.models import digits_cnn
from fedpart.randomness.noise import Noise, NoiseKey


def test_names_and_units():
    task = Task(
        digits_cnn(input_shape=(1, 8, 8)),
        transforms=[AffineAugmentation(initial=0.1), AffineAugmentation("augerino"), Shift()],
        hyperparameters=["fc?.weight", "classes.bias"],
    )
    assert task.transform_psi == ("affine.range", "affine2.range", "shift.amount")
    assert set(task.psi_names) - set(task.transform_psi) == {
        "dropout1.logit", "dropout2.logit", "dropout3.logit", "fc1.weight", "classes.bias",
    }  # fmt: skip
    assert not {e.name for e in task.parameter_space(2).entries} & set(task.psi_names)
    psi = task.psi_space.initial()
    values = task.physical(psi)
    assert values["dropout2.rate [%]"] == pytest.approx(10, abs=1e-4)
    assert values["affine.angle_max [deg]"] == pytest.approx(5.7296, abs=1e-3)
    assert values["shift.amount"] == 0.5 and "affine2.angle_min [deg]" in values
    assert values["fc1.weight.norm"] == pytest.approx(task.module.fc1.weight.norm().item(), rel=1e-5)
    assert task.physical(psi + 1)["shift.amount"] == 1.5
    assert task.physical(psi)["shift.amount"] == 0.5  # nothing stuck


def test_one_rate_shared_by_two_layers_and_nested_parameters_of_a_transform():
    module = nn.Sequential(nn.Linear(4, 4), ConcreteDropout(), nn.Linear(4, 4), ConcreteDropout(0.3))
    module[3].logit = module[1].logit
    task = Task(module, samples=2)
    assert task.psi_names == ("1.logit",)
    psi = torch.tensor([-50.0])  # a rate of nearly 0: the shared logit reaches both layers
    x, (w, _) = torch.randn(3, 4), initial(task)
    out = task.outputs(w, psi, x, Noise(NoiseKey(0, "test")))
    torch.testing.assert_close(out, task.module.eval()(x))

    class Mix(HyperModule):
        hyperparameters = ("net.weight", "raw")

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 4, bias=False)
            self.raw = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return x + self.net(x)

        def widths(self):
            return self.net.weight.diagonal() + self.raw.sum()

    task = Task(nn.Linear(4, 2), transforms={"mix": Mix()})
    assert task.psi_names == ("mix.raw", "mix.net.weight")
    assert {"mix.raw[0]", "mix.raw[1]", "mix.net.weight[15]"} <= set(task.physical(task.psi_space.initial()))
    psi = torch.arange(18.0).requires_grad_()
    widths = task.widths(psi)
    assert widths.tolist() == [3.0, 8.0, 13.0, 18.0]
    widths.sum().backward()
    assert psi.grad[:2].tolist() == [4.0, 4.0] and psi.grad.sum() == 12


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
    "symmetric": (smooth_network, affine("symmetric")),
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
