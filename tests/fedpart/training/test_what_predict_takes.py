"""What a result predicts of inputs as people have them."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fedpart import Dataset, Task, federate, fit

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
ROUND = {"rounds": 1, "method": "fedavg", "chunks": (1.0,)}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def result():
    return federate(network(), [(X[i::3], Y[i::3]) for i in range(3)], **ROUND)


@pytest.mark.parametrize(
    "given",
    [X.numpy(), X.numpy().astype(np.float64), X.tolist(), [tuple(row) for row in X.tolist()], Dataset(X, Y)],
    ids=["array", "doubles", "lists", "rows", "data set"],
)
def test_arrays_and_lists_are_the_tensors_they_stand_for(result, given):
    torch.testing.assert_close(result.predict(given), result.predict(X))


def test_one_example_alone_is_a_batch_of_one(result):
    for row in (X[3], X[3].numpy(), X[3].tolist()):
        torch.testing.assert_close(result.predict(row), result.predict(X[3:4]))
    whole = [[1, 0, 2, 0, 3, 0]]  # of a table
    torch.testing.assert_close(result.predict(whole), result.predict(torch.tensor(whole).float()))
    centralised = fit(network(), (X, Y), iterations=1, chunks=(0.5, 0.5), method="none")
    assert centralised.predict(X[0].tolist()).shape == (1, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("cat.png", "got 'cat.png'; read files first"),
        (["cat.png", "dog.png"], r"inputs\[0\] are tensors or arrays of numbers"),
        (None, "got None"),
        (X[:, :4], r"inputs \[n, 4\] do not fit the network, which was trained on inputs \[n, 6\]"),
        ([(X, Y)], r"which was trained on inputs \[n, 6\]"),
        ({}, "no tensor"),
        ([[1.0, 2.0], [3.0]], "pad them to one length"),
        (X[:0], "no examples to predict"),
        ((255 * X.abs()).byte(), "x / 255"),
    ],
)
def test_what_is_no_input_of_the_network_is_refused_in_a_sentence(result, given, said):
    with pytest.raises(ValueError, match=said):
        result.predict(given)


def test_several_inputs_and_tokens():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4), nn.Linear(6, 2)

        def forward(self, ids, more):
            return self.out(torch.cat([self.table(ids).mean(1), more], 1))

    ids = torch.arange(24).remainder(9).view(12, 2)
    inputs, targets = {"ids": ids, "more": X[:12, :2]}, Y[:12]
    found = federate(Task(Both(), samples=1), [(inputs, targets)] * 2, **ROUND)
    plain = {"ids": ids.numpy().astype(np.int32), "more": X[:12, :2].tolist()}
    torch.testing.assert_close(found.predict(plain), found.predict(inputs))
    alone = {"ids": ids[0].tolist(), "more": X[0, :2].tolist()}
    torch.testing.assert_close(found.predict(alone), found.predict(inputs)[:1])


def test_a_mask_is_one_of_true_and_false_as_in_training():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(X.shape[1], 2)

        def forward(self, x, mask):
            return self.out(x * ~mask)

    mask = X[:12] > 0
    inputs, targets = {"x": X[:12], "mask": mask}, Y[:12]
    found = fit(Task(Masked(), samples=1), (inputs, targets), method="none", iterations=2, batch_size=4)
    numbers = {"x": X[:12], "mask": mask.long()}
    assert torch.equal(found.predict(numbers), found.predict(inputs))
    assert torch.equal(found.predict({"x": X[:12], "mask": mask.float()}), found.predict(inputs))
    turned = Dataset({"mask": mask, "x": X[:12]}, targets)
    assert found.state.evaluate(turned) == found.state.evaluate(Dataset(inputs, targets))
    with pytest.raises(ValueError, match="give 0 and 1 alone"):
        found.predict({"x": X[:12], "mask": 2 * mask.long()})
    with pytest.raises(ValueError, match=r"mask'?\]? are torch.int64, and were True"):
        found.state.evaluate(Dataset(numbers, targets))


def test_outputs_that_are_probabilities_already_are_told():
    data, ends = (X[:12], Y[:12]), {"classification": nn.Softmax(1), "multilabel": nn.Sigmoid()}
    for likelihood, end in ends.items():
        targets = data[1] if likelihood == "classification" else torch.eye(2)[data[1]]
        net = nn.Linear(X.shape[1], 2)
        for last, said in ((end, 1), (nn.Identity(), 0)):
            task = Task(nn.Sequential(net, last), likelihood=likelihood, samples=1)
            for train in (
                lambda task, given: federate(task, [given] * 2, **ROUND),
                lambda task, given: fit(task, given, method="none", iterations=2, batch_size=4),
            ):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    train(task, (data[0], targets))
                assert sum("look like probabilities" in str(each.message) for each in caught) == said
