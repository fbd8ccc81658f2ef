"""Node partitioning: owners of weights, proportions, slim dense networks, refusals."""

from functools import partial

import pytest
import refusals
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpart import NodePartition, ParameterSpace, Protocol, Task
from fedpart.federated.cohorts import expected_upload_ratio
from fedpart.federated.settings import FederationSettings
from fedpart.nn.models import digits_cnn, mnist_cnn
from fedpart.partition.nodes import unit_assignments

U = (0.7, 0.2, 0.1)


class Declared(nn.Module):
    """A module whose order of layers cannot be read off; the last convolution is pooled to its channels."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(20, 4)
        self.middle = nn.Linear(12, 20)
        self.first = nn.Conv1d(2, 16, 3)
        self.second = nn.Conv1d(16, 12, 3)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = torch.sigmoid(self.second(h)).mean(-1)  # a sigmoid of an absent unit is not 0: nothing reads it
        return self.head(F.relu(self.middle(h)))


CHAIN = ("first", "second", "middle", "head")


def node(module, u=U, chain=None, defaults="zeros", seed=0):
    space = ParameterSpace(module, len(u))
    return NodePartition(space, u, module, defaults=defaults, seed=seed, chain=chain)


def owners(partition):
    parts = torch.split(partition.assignment, [entry.size for entry in partition.space.entries])
    entries = zip(partition.space.entries, parts, strict=True)
    return {entry.name: part.view(entry.shape).long() for entry, part in entries}


def slim(module, chain, kept):
    """The dense network of the kept units; ``kept[name]`` are indices of the layer's outputs."""
    layers, incoming = {}, None
    for name in chain:
        layer = module.get_submodule(name)
        out = kept[name]
        weight = layer.weight[out]
        if incoming is not None:
            units, total = incoming
            block = weight.shape[1] // total
            inputs = (units[:, None] * block + torch.arange(block)).flatten()
            weight = weight[:, inputs]
        layers[name] = (weight, layer.bias[out])
        incoming = (out, len(layer.bias))
    return layers


@pytest.mark.parametrize("build", [mnist_cnn, digits_cnn])
def test_weights_belong_to_the_later_of_input_and_output(build):
    module = build(dropout=None)
    own = owners(node(module))
    names = [name for name, layer in module.named_children() if hasattr(layer, "weight")]
    assert (own["classes.bias"] == 1).all()
    inputs = torch.ones(1, dtype=torch.int64)  # the image's channel
    for name in names:
        outputs = own[f"{name}.bias"]  # a bias belongs to its unit
        weight = own[f"{name}.weight"].flatten(2) if own[f"{name}.weight"].ndim > 2 else own[f"{name}.weight"]
        if weight.ndim == 3:
            assert (weight == weight[..., :1]).all()  # one owner per kernel
            weight = weight[..., 0]
        feeding = inputs.repeat_interleave(weight.shape[1] // len(inputs))  # a flattened channel is a block
        assert torch.equal(weight, torch.maximum(outputs[:, None], feeding[None, :])), name
        if name != "classes":
            counts = torch.bincount(outputs, minlength=4)[1:]
            assert all(abs(c - len(outputs) * u) <= 1 for c, u in zip(counts.tolist(), U, strict=True))
        inputs = outputs


def test_proportions_of_weights():
    partition = node(mnist_cnn(dropout=None))
    shares = [size / partition.space.size for size in partition.sizes]
    assert shares == pytest.approx([0.49, 0.32, 0.19], abs=0.006)
    settings = FederationSettings(clients=10, scheme="node", defaults="zeros", chunks=U)
    protocol = Protocol(Task(mnist_cnn()), settings)
    assert expected_upload_ratio(protocol) == pytest.approx(0.7 + 0.2 * 0.51 + 0.1 * 0.19, abs=0.002)


@pytest.mark.parametrize("case", ["digits_cnn", "with dropout", "declared", "nested"])
def test_subnetwork_is_the_slim_dense_network(case):
    torch.manual_seed(0)
    if case == "declared":
        module, chain, x = Declared(), CHAIN, torch.randn(6, 2, 9)
    elif case == "nested":
        module = nn.Sequential(
            nn.Sequential(nn.Linear(6, 10), nn.Identity(), nn.Softplus()),
            nn.Unflatten(1, (10, 1, 1)),
            nn.Sequential(nn.Conv2d(10, 12, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2)),
            nn.Sequential(nn.AvgPool2d(1), nn.AdaptiveMaxPool2d(2), nn.Flatten()),
            nn.Linear(48, 5),
        )
        chain, x = ("0.0", "2.0", "4"), torch.randn(6, 6)
    else:
        module = digits_cnn(input_shape=(1, 12, 12), dropout=0.1 if case == "with dropout" else None)
        chain, x = ("conv1", "conv2", "fc1", "classes"), torch.randn(6, 1, 12, 12)
    module.double().eval()
    exclude = [n for n, _ in module.named_parameters() if n.endswith("logit")]
    space = ParameterSpace(module, 3, exclude=exclude)
    declared = chain if case == "declared" else None
    partition = NodePartition(space, U, module, defaults="zeros", chain=declared)
    own = torch.randn_like(space.initial()) * 0.3
    w = partition.to_partition_order(own)
    for name, value in space.tensors(own).items():
        module.get_parameter(name).data.copy_(value)
    biases = {name: owners(partition)[f"{name}.bias"] for name in chain}
    sizes, x = [], x.double()
    for k in (1, 2, 3):
        kept = {name: (biases[name] <= k).nonzero()[:, 0] for name in chain}
        layers = slim(module, chain, kept)
        out = functional_call(module, partition.materialise(w, k), (x,))
        with torch.no_grad():
            torch.testing.assert_close(out, run_slim(case, layers, x), rtol=1e-6, atol=1e-6)
        numbers = sum(weight.numel() + bias.numel() for weight, bias in layers.values())
        assert numbers == partition.bounds[k]  # every number of the head is in the slim network, and no other
        sizes.append(numbers)
    assert sizes[0] < sizes[1] < sizes[2] == space.size


def run_slim(case, layers, x):
    if case == "declared":
        h = torch.tanh(F.conv1d(x, *layers["first"]))
        h = torch.sigmoid(F.conv1d(h, *layers["second"])).mean(-1)
        return F.linear(F.relu(F.linear(h, *layers["middle"])), *layers["head"])
    if case == "nested":
        h = F.softplus(F.linear(x, *layers["0.0"]))[:, :, None, None]
        h = F.adaptive_avg_pool2d(torch.tanh(F.conv2d(h, *layers["2.0"], padding=1)), 2)
        return F.linear(h.flatten(1), *layers["4"])
    h = F.max_pool2d(F.relu(F.conv2d(x, *layers["conv1"], padding=2)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, *layers["conv2"], padding=2)), 2)
    return F.linear(F.relu(F.linear(h.flatten(1), *layers["fc1"])), *layers["classes"])


def test_regenerated_from_the_seed():
    module = digits_cnn(dropout=None)
    assert torch.equal(node(module, seed=2).assignment, node(module, seed=2).assignment)
    assert not torch.equal(node(module, seed=2).assignment, node(module, seed=3).assignment)
    units = unit_assignments(module, U, seed=2)
    assert list(units) == ["conv1", "conv2", "fc1", "classes"]
    assert (units["conv1"][0] == 1).all() and (units["classes"][1] == 1).all()


shared = nn.Linear(8, 8)
tied = nn.Linear(8, 8)
tied.weight = shared.weight
LINEAR, UNITS = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), "is not known to act unit by unit"
NORM = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 2, 3))
GROUPED = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 1, groups=2), nn.Conv2d(8, 2, 1))


def between(layer):
    return nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 2))


def test_refused():
    rows = [
        (Declared(), None, "order of layers in Declared is not known: .* or chain="),
        (GROUPED, None, "grouped convolution '1' has no dense units; use scheme='random'"),
        (Declared(), ("second", "first", "middle", "head"), "check the order of the chain"),
        (Declared(), ("first", "second", "middle"), "'head.weight' does not belong to the chain"),
        (Declared(), ("frist", "second"), "no layer 'frist': did you mean 'first'"),
        (LINEAR, ("0", "1", "2"), "'1', a ReLU"),
        (NORM, None, f"GroupNorm at '1' {UNITS} .* use scheme='random'"),
        (NORM, ("0", "2"), "'1.weight' does not belong to the chain"),
        (between(nn.Softmax(-1)), None, "Softmax at '1'"),
        (nn.Sequential(nn.Linear(8, 8)), None, "at least two Linear or Conv layers"),
        (nn.Sequential(shared, nn.ReLU(), shared), None, "share one weight"),
        (nn.Sequential(shared, nn.ReLU(), tied), None, "share one weight"),
        (nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.Linear(8, 2)), None, f"Linear at '1' {UNITS}"),
        (nn.Sequential(nn.Linear(3, 4), nn.Flatten(), nn.Linear(20, 2)), None, "'2' has 20 inputs, which 4 "),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(2), nn.Linear(16, 2)), None, f"Flatten at '1' {UNITS}"),
        (between(nn.MaxPool1d(3, 1, 1)), None, f"MaxPool1d at '1' {UNITS}"),
        (between(nn.PixelShuffle(1)), None, "PixelShuffle"),
    ]
    refusals.check(
        (f"{number}: {says}", partial(node, module, chain=chain), says)
        for number, (module, chain, says) in enumerate(rows)
    )
