"""Which parameters are hyperparameters, what they are called, and what they are in units a person reads."""

import pytest
import torch
from problems import Shift, initial
from torch import nn

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


def test_one_rate_shared_by_two_layers():
    module = nn.Sequential(nn.Linear(4, 4), ConcreteDropout(), nn.Linear(4, 4), ConcreteDropout(0.3))
    module[3].logit = module[1].logit
    task = Task(module, samples=2)
    assert task.psi_names == ("1.logit",)
    psi = torch.tensor([-50.0])  # a rate of nearly 0: the shared logit reaches both layers
    x, (w, _) = torch.randn(3, 4), initial(task)
    out = task.outputs(w, psi, x, Noise(NoiseKey(0, "test")))
    torch.testing.assert_close(out, task.module.eval()(x))


def test_nested_parameters_of_a_transform():
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
