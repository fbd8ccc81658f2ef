"""LoRA's learned scale and dropout, in layers with the attributes of peft's."""

import copy

import pytest
import torch
from every_way import assert_learned_every_way
from torch import nn

from fedpart import Task, fold_lora, learn_lora
from fedpart.nn.hyperparameters import ConcreteDropout, LoraGate

SHAPE = torch.Size([5])


class Adapted(nn.Module):
    """A linear layer as peft's ``lora.Linear`` computes it, with adapters that are not 0."""

    def __init__(self, inputs, outputs, rank=2):
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs)})
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(0.05)})
        self.lora_variant = {}
        self.scaling = {"default": 2.0}

    def branch(self, x):
        dropped = self.lora_dropout["default"](x)
        return self.lora_B["default"](self.lora_A["default"](dropped)) * self.scaling["default"]

    def forward(self, x):
        return self.base_layer(x) + self.branch(x)


def adapted(shape=SHAPE, classes=3):
    torch.manual_seed(0)
    return nn.Sequential(Adapted(shape.numel(), 8), nn.Tanh(), Adapted(8, classes))


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{"scale": False}, {"dropout": 0.3}], ids=str)
def test_it_is_learned_every_way(options):
    def network(shape, classes):
        return learn_lora(adapted(shape, classes), **options)

    assert_learned_every_way(shape=(5,), network=network)


def test_one_gate_for_all_adapters_in_place():
    network = adapted()
    assert learn_lora(network) is network
    gate = network[0].lora_dropout["default"]
    assert isinstance(gate, LoraGate) and network[2].lora_dropout["default"] is gate
    names = Task(network).psi_names
    assert names == ("0.lora_dropout.default.log_scale", "0.lora_dropout.default.dropout.logit")


@pytest.mark.parametrize(
    "before, options, shown",
    [
        (nn.Dropout(0.05), {"dropout": None}, {"scale": 1}),
        (nn.Dropout(0.05), {"scale": False, "dropout": 0.1}, {"rate [%]": 10}),
        (nn.Dropout(0.05), {"dropout": 0.2}, {"scale": 1, "rate [%]": 20}),
        (nn.Dropout(0.3), {}, {"scale": 1, "rate [%]": 30}),
        (nn.Dropout(0.0), {}, {"scale": 1, "rate [%]": 10}),
        (nn.Identity(), {}, {"scale": 1, "rate [%]": 10}),
    ],
)
def test_psi_are_what_is_asked_for_and_dropout_starts_at_the_adapters_rate(before, options, shown):
    network = adapted()
    for layer in (network[0], network[2]):
        layer.lora_dropout["default"] = before
    task = Task(learn_lora(network, **options))
    found = task.physical(task.psi_space.initial())
    assert {name.rpartition(".")[2]: value for name, value in found.items()} == pytest.approx(shown)


def test_no_gate_stays_inside_a_wrapper():
    """peft's model is a part of a network: learn_lora put the gate into that part."""
    model = nn.Module()
    model.layers = adapted()
    wrapper = nn.ModuleDict({"peft": learn_lora(model), "other": nn.Linear(2, 2)})
    assert isinstance(model.lora, LoraGate)
    fold_lora(wrapper)
    assert not any(isinstance(layer, LoraGate) for layer in wrapper.modules())
    assert not any("lora.log_scale" in name for name in wrapper.state_dict())


def test_the_scale_multiplies_the_adapters_branch_and_at_the_start_nothing_but_dropout_is_new():
    network, x = adapted().eval(), torch.randn(4, 5)
    before = network(x)
    torch.testing.assert_close(learn_lora(network)(x), before)
    assert network.train()(x).sub(before).abs().max() > 0
    layer = network.eval()[0]
    bias = layer.lora_B["default"].bias * layer.scaling["default"]
    before = layer.branch(x) - bias
    layer.lora_dropout["default"].log_scale.data.fill_(0.7)
    torch.testing.assert_close(layer.branch(x) - bias, before * torch.tensor(0.7).exp())


@pytest.mark.parametrize("dropout", [None, 0.3])
def test_folded_adapters_are_plain_and_compute_the_same(dropout):
    network, x = learn_lora(adapted(), dropout=dropout).eval(), torch.randn(4, 5)
    network[0].lora_dropout["default"].log_scale.data.fill_(-0.4)
    learned = copy.deepcopy(network)
    torch.testing.assert_close(fold_lora(network)(x), learned(x))
    plain = network[2].lora_dropout["default"]
    assert type(plain) is nn.Dropout and plain.p == pytest.approx(dropout or 0.0)
    assert not any(isinstance(layer, (LoraGate, ConcreteDropout)) for layer in network.modules())
