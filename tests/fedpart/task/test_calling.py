"""What a network takes and returns: trees of inputs, and outputs inside tuples, dicts and objects."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fedpart import Batch, Task
from fedpart.task.calling import call, outputs_of

ROWS, FEATURES, CLASSES = 5, 3, 4
Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Output:
    """As libraries return it."""

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


class Named(nn.Module):
    """Adds two inputs before a layer."""

    def __init__(self, returned=same):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.returned = nn.Linear(FEATURES, CLASSES), returned

    def forward(self, a, b):
        return self.returned(self.linear(a + b))


class Whole(Named):
    """The same of one argument."""

    def forward(self, both):
        a, b = both.values() if isinstance(both, dict) else both
        return super().forward(a, b)


class Single(Named):
    def forward(self, x):
        return super().forward(x, torch.zeros_like(x))


def two_inputs():
    g = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, FEATURES, generator=g), torch.randn(ROWS, FEATURES, generator=g)


def outputs(net, inputs, samples=1):
    task = Task(net, samples=samples)
    space = task.parameter_space(1)
    return task.outputs(space.tensors(space.initial()), task.psi_space.initial(), inputs, None)


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


def test_names_decide_and_not_places():
    a, b = two_inputs()
    net = nn.Module()
    net.forward = lambda b, a: a - 2 * b
    assert torch.equal(call(net, {"a": a, "b": b}), a - 2 * b)


def test_samples_repeat_every_tensor_of_a_tree():
    a, b = two_inputs()
    torch.testing.assert_close(outputs(Named(), {"a": a, "b": b}, samples=3), Named()(a, b))


def test_a_tree_inside_a_tree():
    a, b = two_inputs()

    class Nested(Named):
        def forward(self, pair, scale):
            return scale[:, None] * self.linear(pair["a"] + pair["b"])

    scale = torch.arange(ROWS).float()
    expected = scale[:, None] * Named()(a, b)
    torch.testing.assert_close(outputs(Nested(), {"pair": {"a": a, "b": b}, "scale": scale}), expected)


@pytest.mark.parametrize("found", [None, (), {}, "text", {"logits": None}, Output(torch.zeros(1), None)])
def test_no_outputs_are_one_sentence(found):
    with pytest.raises(TypeError, match=r"in which no outputs are found; return a tensor, a tuple"):
        outputs_of(found)


@pytest.mark.parametrize("returned", [lambda out: out.T, lambda out: out.mean(), lambda out: out[:2]])
def test_outputs_of_other_rows_are_one_sentence(returned):
    with pytest.raises(ValueError, match=r"for 5 rows; the first dimension .* \(batch_first=True\)"):
        outputs(Named(returned), two_inputs())


def test_a_tree_of_one_tensor_is_that_tensor_to_the_bit():
    x, _ = two_inputs()
    batch = [Batch(inputs, torch.arange(ROWS) % CLASSES) for inputs in (x, {"x": x}, (x,), [x])]
    task = Task(Single(), samples=1)
    space = task.parameter_space(1)
    w = space.tensors(space.initial())
    plain, *trees = [task.loss(w, task.psi_space.initial(), of, None) for of in batch]
    assert all(torch.equal(tree, plain) for tree in trees)


@pytest.mark.parametrize("targets", [torch.zeros(ROWS, dtype=torch.int64), {"answers": torch.zeros(ROWS)}])
def test_a_network_that_takes_no_targets_has_no_loss_of_its_own(targets):
    task = Task(nn.Linear(FEATURES, CLASSES), likelihood="from_model", samples=1)
    space = task.parameter_space(1)
    batch = Batch(torch.zeros(ROWS, FEATURES), targets)
    message = (
        r"from_model calls the network with .* Linear\.forward\(input.*does not take; give it an argument"
    )
    with pytest.raises(TypeError, match=message):
        task.loss(space.tensors(space.initial()), task.psi_space.initial(), batch, None)
