"""What a network takes and returns: trees of inputs, and outputs inside tuples, dicts and objects."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from adapted import Named, Single, module
from problems import initial, outputs
from torch import Tensor, nn

from fedpart import Batch, Task
from fedpart.task.calling import call, loss_of

ROWS, FEATURES, CLASSES = 5, 3, 4
Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Output:
    hidden: Tensor
    logits: Tensor


def same(x):
    return x


RETURNED = {
    "a tensor": same,
    ".logits": lambda out: Output(torch.zeros(2), out),
    "['logits']": lambda out: {"hidden": torch.zeros(2), "logits": out},
    "the first of a dict": lambda out: {"scores": out, "hidden": torch.zeros(2)},
    "the first of a tuple": lambda out: (out, torch.zeros(2)),
    "the first of a list": lambda out: [out],
    "the first of a named tuple": lambda out: Pair(out, torch.zeros(2)),
}


class Whole(Named):
    def forward(self, both):
        a, b = both.values() if isinstance(both, dict) else both
        return super().forward(a, b)


def two_inputs():
    g = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, FEATURES, generator=g), torch.randn(ROWS, FEATURES, generator=g)


@pytest.mark.parametrize("returned", RETURNED)
def test_outputs_are_found_in_what_a_network_returns(returned):
    a, b = two_inputs()
    assert torch.equal(outputs(Named(RETURNED[returned]), (a, b)), Named()(a, b))


@pytest.mark.parametrize("net", [Named, Whole])
@pytest.mark.parametrize(
    "inputs",
    [lambda a, b: {"a": a, "b": b}, lambda a, b: (a, b), lambda a, b: [a, b], Pair],
    ids=["dict", "tuple", "list", "named tuple"],
)
def test_trees_are_arguments_or_one_argument(net, inputs):
    a, b = two_inputs()
    assert torch.equal(outputs(net(), inputs(a, b)), Named()(a, b))
    torch.testing.assert_close(outputs(Task(net(), samples=3), inputs(a, b)), Named()(a, b))


def test_a_tree_inside_a_tree_of_one_tensor_and_with_names_that_calls_use_themselves():
    a, b = two_inputs()

    class Nested(Named):
        def forward(self, pair, scale):
            return scale[:, None] * self.linear(pair["a"] + pair["b"])

    scale = torch.arange(ROWS).float()
    expected = scale[:, None] * Named()(a, b)
    torch.testing.assert_close(outputs(Nested(), {"pair": {"a": a, "b": b}, "scale": scale}), expected)
    x, _ = two_inputs()
    batch = [Batch(inputs, torch.arange(ROWS) % CLASSES) for inputs in (x, {"x": x}, (x,), [x])]
    task = Task(Single(), samples=1)
    plain, *trees = [task.loss(*initial(task), of, None) for of in batch]
    assert all(torch.equal(tree, plain) for tree in trees)

    class Keys(Named):
        def forward(self, module, args):
            return self.linear(module - args)

    a, b = two_inputs()
    assert torch.equal(outputs(Keys(), {"args": b, "module": a}), Named().linear(a - b)), "by names"


@pytest.mark.parametrize("wrap", [nn.Sequential, lambda layer: nn.Sequential(nn.Sequential(layer)), same])
def test_a_dict_of_one_tensor_is_that_tensor_for_a_layer_of_torch(wrap):
    x, _ = two_inputs()
    net = wrap(nn.Linear(FEATURES, CLASSES))
    assert torch.equal(outputs(net, {"image": x}), net(x))

    class Read(Named):
        def forward(self, batch):
            return self.linear(batch["x"])

    assert torch.equal(outputs(nn.Sequential(Read()), {"x": x}), Named().linear(x)), "it stays one for others"


A, B = two_inputs()


def test_an_error_of_the_network_itself_stays_as_it_is():
    class Faulty(Single):
        def forward(self, x):
            raise TypeError("mine")

    for inputs in (A, {"x": A}, (A,)):
        with pytest.raises(TypeError, match="mine"):
            outputs(Faulty(), inputs)


TAKEN = {
    "y": lambda x, mask=None, y=None: (x, mask, y),
    "target": lambda x, target, mask=None: (x, mask, target),
    "labels before y": lambda x, y=None, labels=None: (x, y, labels),
    "the required one": lambda x, mask=None, *, truth: (x, mask, truth),
    "the next, required": lambda x, truth, mask=None: (x, mask, truth),
    "the only one left": lambda x, truth=None: (x, None, truth),
    "by place alone": lambda x, truth, /: (x, None, truth),
    "any by place": lambda x, *rest: (x, None, *rest),
}


@pytest.mark.parametrize("form", [same, lambda x: (x,), lambda x: {"x": x}], ids=["tensor", "tuple", "dict"])
@pytest.mark.parametrize("name", TAKEN)
def test_targets_go_where_they_belong(name, form):
    net = module(TAKEN[name])
    if isinstance(form(A), dict) and "by place" in name:
        with pytest.raises(ValueError, match=r"a dict of 'x', and targets, but the network has forward\(x, "):
            call(net, form(A), B)
    else:
        assert call(net, form(A), B) == (A, None, B)


def test_inputs_called_as_targets_and_a_dict_of_targets():
    net = module(lambda x, y, truth: (x, y, truth))
    for inputs in ((A, B), {"x": A, "y": B}):
        assert call(net, inputs, ROWS) == (A, B, ROWS)
    targets = {"kind": 1, "box": B}
    assert call(module(lambda x, box, kind: (x, box, kind)), A, targets) == (A, B, 1)
    assert call(module(lambda x, targets: (x, targets)), A, targets) == (A, targets)


@pytest.mark.parametrize(
    "found, place",
    [
        ((torch.rand(ROWS, CLASSES), torch.tensor(1.0)), 1),
        ((torch.tensor(1.0), torch.rand(ROWS)), 0),
        ((torch.rand(ROWS, CLASSES), torch.rand(ROWS)), 1),
        ((torch.arange(ROWS), torch.rand(ROWS), None), 1),
        ((torch.rand(ROWS), torch.rand(1)), 1),
    ],
)
def test_the_loss_in_a_tuple_is_the_only_one_that_may_be_it(found, place):
    assert torch.equal(loss_of(found, ROWS), found[place].squeeze())
