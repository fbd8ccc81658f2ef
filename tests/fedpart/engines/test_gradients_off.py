"""A caller, or a forward, that switches gradients off; and sparse tensors that a network only reads."""

import itertools
from functools import partial

import pytest
import refusals
import torch
from problems import assert_near, assert_same
from torch import nn

from fedpart import ClientError, Dataset, TrainingError, federate, fit, personalise

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
SHARDS = [(X, Y)] * 3
OFF = "Gradients are switched off around this call, by torch.no_grad"
WAYS = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
WAYS["off"] = partial(torch.set_grad_enabled, False)


def within(context, call):
    with context():
        return call()


def test_around_a_call():
    trained = federate(nn.Linear(4, 3), SHARDS, rounds=1)
    calls = {
        "federate": (lambda: federate(nn.Linear(4, 3), SHARDS, rounds=1), ValueError),
        "skip": (lambda: federate(nn.Linear(4, 3), SHARDS, rounds=1, on_client_error="skip"), ValueError),
        "fused": (lambda: federate(nn.Linear(4, 3), SHARDS, rounds=1, execution="fused"), ValueError),
        "fit": (lambda: fit(nn.Linear(4, 3), (X, Y), iterations=1), TrainingError),
        "personalise": (lambda: personalise(trained, (X, Y)), ClientError),
    }
    refusals.check(
        (f"{what}, {way}", partial(within, context, call), error, OFF)
        for (what, (call, error)), (way, context) in itertools.product(calls.items(), WAYS.items())
    )
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("way", WAYS)
def test_what_was_made_or_is_read_there_is_as_any_other(way):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    expected = federate(net, SHARDS, rounds=2)
    with WAYS[way]():
        torch.manual_seed(0)
        other = nn.Linear(4, 3)
        shards = [(X.clone(), Y.clone())] * 3
        scores = expected.state.evaluate(Dataset(*shards[0]))
    assert_same(federate(other, shards, rounds=2), expected)
    assert scores == expected.state.evaluate(Dataset(X, Y))


class Cut(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(4, 3), how

    def forward(self, x):
        if self.how == "detach":
            return self.layer(x).detach()
        with torch.no_grad():
            return self.layer(x)


def test_within_forward():
    says = r"the loss does not depend on any weight; a detach\(\) or torch.no_grad\(\) in forward"
    refusals.check(
        (f"{how}, {what}", partial(call, Cut(how)), error, says)
        for how in ("detach", "no_grad")
        for what, call, error in [
            ("federate", partial(federate, shards=SHARDS, rounds=1), ClientError),
            ("fit", partial(fit, dataset=(X, Y), iterations=1), TrainingError),
        ]
    )


class Graph(nn.Module):
    """A layer behind a fixed matrix, as a graph's."""

    def __init__(self, matrix):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.register_buffer("matrix", matrix)

    def forward(self, x):
        return self.layer((self.matrix @ x.t()).t())


@pytest.mark.parametrize("how", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_a_sparse_buffer_computes_as_the_dense_one(how):
    matrix = torch.diag(torch.tensor([1.0, 2.0, 0.0, 4.0]))
    graphs = Graph(matrix), Graph(getattr(matrix, how)())
    assert_near(*(federate(graph, SHARDS, rounds=2) for graph in graphs), rtol=0, atol=1e-6)


def test_sparse_gradients_of_an_embedding_are_gradients():
    def run(sparse):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(5, 4, sparse=sparse), nn.Flatten(), nn.Linear(8, 3))
        return federate(net, [(torch.arange(24).view(12, 2) % 5, Y)] * 3, rounds=2)

    assert_same(run(False), run(True))
