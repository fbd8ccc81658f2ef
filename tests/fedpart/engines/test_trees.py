"""Data as dicts and tuples through whole runs: the bits are those of the same data as a tensor."""

import pytest
import torch
from problems import CLASSES, Gain, shards
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from fedpart import ConcreteDropout, Dataset, Task, federate, fit

SIZES = (7, 12, 9, 5)
WAYS = [("loop", 1), ("loop", 2), ("vectorised", 1), ("fused", 1)]


class Net(nn.Module):
    """Of an image ``x``, with dropout and a hyperparameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), Gain(), ConcreteDropout(0.2), nn.Linear(8, CLASSES)
        )

    def forward(self, x):
        return self.layers(x)


class Two(Net):
    """Of the two halves of an image, and what it returns is a dict."""

    def forward(self, left, right, mask):
        x = torch.cat([left, right], -1)
        return {"hidden": x, "logits": super().forward(x * mask[:, None, None, None].to(x.dtype))}


class Examples(TorchDataset):
    """Example by example."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, place):
        return {"x": self.data.inputs[place], "labels": self.data.targets[place]}


def in_dict(data):
    return Dataset({"x": data.inputs}, data.targets)


def halves(data):
    left, right = data.inputs.split(3, -1)
    mask = torch.ones(len(data), dtype=torch.bool)
    return {"left": left, "right": right, "mask": mask}, data.targets


def run(net, data, **options):
    options = {"rounds": 2, "chunks": (0.5, 0.3, 0.2), "seed": 1, **options}
    return federate(Task(net, samples=2), data, validation=data[0], **options)


def assert_same_run(found, expected):
    assert torch.equal(found.state.w, expected.state.w) and torch.equal(found.state.psi, expected.state.psi)
    assert found.metrics[-1].val_nll == expected.metrics[-1].val_nll
    assert found.metrics[-1].val_accuracy == expected.metrics[-1].val_accuracy is not None


@pytest.mark.parametrize("execution, workers", WAYS)
def test_trees_give_the_bits_of_tensors(execution, workers):
    data, how = shards(SIZES), {"execution": execution, "workers": workers}
    expected = run(Net(), data, **how)
    for form in (in_dict, lambda of: ((of.inputs,), of.targets), Examples):
        assert_same_run(run(Net(), [form(of) for of in data], **how), expected)


@pytest.mark.parametrize("execution, workers", WAYS)
def test_several_inputs_and_a_dict_of_outputs(execution, workers):
    data, how = shards(SIZES), {"execution": execution, "workers": workers}
    assert_same_run(run(Two(), [halves(of) for of in data], **how), run(Net(), data, **how))


def test_centralised_training_gives_the_same_bits_too():
    data = shards([40])[0]
    options = {"iterations": 5, "batch_size": 8, "chunks": (0.5, 0.5)}
    plain, tree = (fit(Task(Net(), samples=2), of, **options) for of in (data, in_dict(data)))
    assert torch.equal(plain.state.w, tree.state.w) and torch.equal(plain.state.psi, tree.state.psi)
