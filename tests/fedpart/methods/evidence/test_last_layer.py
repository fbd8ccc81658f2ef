"""Evidence of the last layer against a dense Gaussian density of all targets, in double precision."""

import pytest
import torch
from evidences import draws, evidence, numeric, weights
from problems import Gain, Shift
from torch import nn
from torch.nn import functional as F

from fedpart import Batch, Task
from fedpart.methods.evidence.last_layer import LastLayer
from fedpart.randomness.noise import Noise, NoiseKey

N, CLASSES = 11, 3


def body():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Gain())


def problem(regression=False, bias=True, samples=2):
    torch.manual_seed(0)
    net = nn.Sequential(body(), nn.Linear(5, CLASSES, bias=bias))
    likelihood = "gaussian" if regression else "classification"
    task = Task(net, transforms=[Shift()], samples=samples, precision="fp64", likelihood=likelihood)
    y = torch.randn(N, CLASSES).double() if regression else torch.randint(0, CLASSES, (N,))
    return task, Batch(torch.randn(N, 4).double(), y)


def dense(task, w, psi, batch, own, bias=True):
    """Sum over the columns of Y of log N(y | 0, I / beta + F F' / alpha), an N x N matrix."""
    net, (alpha, beta), features = body().double(), own.exp(), []
    named = task.psi_tensors(psi)
    own_tensors = {"0.weight": w["0.0.weight"], "0.bias": w["0.0.bias"], "2.log_gain": named["0.2.log_gain"]}
    for part, key in draws(batch)():
        rows = part.inputs.repeat_interleave(task.samples, 0)
        rows = task.transformed(psi, rows, Noise(key, dtype=torch.float64))
        found = torch.func.functional_call(net, own_tensors, rows).detach()
        features.append(found.view(part.examples, task.samples, -1).mean(1))
    f = F.pad(torch.cat(features), (0, int(bias)), value=1.0)
    y = batch.targets if batch.targets.is_floating_point() else F.one_hot(batch.targets, CLASSES).double()
    covariance = torch.eye(N).double() / beta + f @ f.T / alpha
    density = torch.distributions.MultivariateNormal(torch.zeros(N).double(), covariance)
    return float(density.log_prob(y.T).sum())


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("alpha, beta", [(1.0, 20.0), (0.01, 0.3)])
def test_it_is_the_dense_gaussian_density(regression, bias, alpha, beta):
    task, batch = problem(regression, bias)
    w, psi, own = weights(task), task.psi_space.initial(), torch.tensor([alpha, beta]).double().log()
    found = evidence(LastLayer(task), w, psi, own, draws(batch))
    assert found == pytest.approx(dense(task, w, psi, batch, own, bias), rel=1e-10)


def test_its_gradients_are_those_of_the_dense_density():
    task, batch = problem()
    estimate, w, psi = LastLayer(task), weights(task), task.psi_space.initial()
    own = torch.tensor([0.7, 4.0]).double().log()
    total = estimate.total(w, psi, draws(batch))
    gradient = estimate.gradient(total, psi, own, draws(batch))
    expected = numeric(lambda at: dense(task, w, at, batch, own), psi)
    assert expected.abs().min() > 1e-2
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)
    of_own = numeric(lambda at: dense(task, w, psi, batch, at), own)
    torch.testing.assert_close(estimate.own_gradient(total, own), of_own, rtol=1e-6, atol=1e-6)


def test_half_of_the_batches_give_the_whole_gradient_where_the_halves_are_alike():
    """The part that is differentiated is scaled to all data."""
    task, batch = problem(samples=1)
    estimate, w, psi = LastLayer(task), weights(task), task.psi_space.initial()
    own = torch.zeros(2).double()

    def batches(times):
        return lambda: iter([(batch, NoiseKey(0, "evidence", (0,)))] * times)

    total = estimate.total(w, psi, batches(2))
    assert total.examples == 2 * N
    half, whole = (estimate.gradient(total, psi, own, batches(times)) for times in (1, 2))
    torch.testing.assert_close(half, whole, rtol=1e-12, atol=0)
