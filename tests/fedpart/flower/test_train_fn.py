"""Clients that bring their own training step."""

import pytest
import torch
from inprocess_grid import InProcessGrid
from problems import chain_net, shards

from fedpart import Federation, FederationSettings, LocalSettings, Protocol, Task, federate
from fedpart.engines.executor import Executor
from fedpart.flower import FedPart, make_client_app
from fedpart.training.optimisers import SGDSettings

DATA = shards([9, 8, 7, 6])
LOCAL = LocalSettings(batch_size=4, learning_rate=0.05, weight_decay=0.01, epochs=2)
SETTINGS = {"chunks": (0.5, 0.5), "cohort": 3, "local": LOCAL, "server": SGDSettings(1.0)}


def task():
    torch.manual_seed(0)
    return Task(chain_net(), samples=1)


def by_optimiser(kind, rate):
    def train(weights, batches, loss):
        optimiser = kind([weights], lr=rate)
        for batch in batches:
            optimiser.zero_grad()
            loss(batch).backward()
            optimiser.step()

    return train


def trained(train_fn, rounds=3, **changes):
    class Side:
        def __init__(self, config):
            self.protocol = Protocol(task(), FederationSettings(clients=len(DATA), **{**SETTINGS, **changes}))
            self.shards = DATA

    federation = Federation(Side({}).protocol)
    result = FedPart(federation).run(
        InProcessGrid(make_client_app(Side, train_fn=train_fn), len(DATA), {}), rounds
    )
    return federation, result


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", ["partitioned", "fedavg", "partitioned+fedprox"])
def test_sgd_of_ones_own_gives_what_sgd_gives(method):
    federation, result = trained(by_optimiser(torch.optim.SGD, 0.05), method=method)
    expected = federate(task(), DATA, rounds=3, method=method, **SETTINGS)
    assert torch.allclose(federation.w, expected.state.w, atol=2e-6)
    assert torch.allclose(federation.psi, expected.state.psi, atol=2e-6)
    assert not torch.equal(federation.w, trained(None, rounds=1, method=method)[0].w)
    assert [result.train_metrics_clientapp[n]["train-loss"] for n in (1, 2, 3)] == pytest.approx(
        [report.train_loss for report in expected.metrics], rel=1e-5
    )


def test_adam_of_ones_own_learns():
    _, result = trained(by_optimiser(torch.optim.Adam, 0.05), 12, method="fedavg")
    losses = [result.train_metrics_clientapp[n]["train-loss"] for n in range(1, 13)]
    assert losses[-1] < 0.8 * losses[0]


def test_weights_may_be_moved_by_any_means_and_only_ones_own_partition_moves():
    """What a client answers is what it has added to the weights of its partition, whoever has done it."""

    def shifted(weights, batches, loss):
        for batch in batches:
            loss(batch)
        with torch.no_grad():
            weights += 0.25

    federation, _ = trained(shifted, 1, method="partitioned")
    before = Federation(federation.protocol).w
    moved = federation.w - before
    assert torch.allclose(moved[moved != 0], torch.tensor(0.25), atol=1e-6) and (moved != 0).any()


@pytest.mark.parametrize("method", ["scaffold", "fednova", "fedrep", "ditto"])
def test_ways_to_combine_that_follow_from_sgd_are_refused(method):
    settings = FederationSettings(clients=len(DATA), cohort=2, method=method, evaluation="clients")
    with pytest.raises(ValueError, match=f"takes SGD's place, with the method '{method}' there is no"):
        Executor(Protocol(task(), settings), by_optimiser(torch.optim.SGD, 0.1))


def nothing(weights, batches, loss):
    pass


def not_a_number(weights, batches, loss):
    loss(next(iter(batches)))
    with torch.no_grad():
        weights.fill_(float("nan"))


def returned(weights, batches, loss):
    for batch in batches:
        loss(batch)
    return weights.detach() + 1


@pytest.mark.parametrize(
    ("train_fn", "says"),
    [
        (returned, "in place and returns nothing"),
        (nothing, r"train_fn has not called loss\(batch\)"),
        (not_a_number, "not finite|not a finite"),
    ],
)
def test_a_step_that_does_nothing_or_harm_is_told(train_fn, says):
    with pytest.raises(Exception, match=says):
        trained(train_fn, 1, method="partitioned")
