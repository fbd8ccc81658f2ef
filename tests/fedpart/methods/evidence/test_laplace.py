"""The diagonal Laplace log marginal likelihood against closed forms written out here."""

import math

import pytest
import torch
from evidences import draws, evidence, five_inputs, numeric, of_five_inputs, weights
from problems import Gain, Shift
from torch import nn
from torch.nn import functional as F

from fedpart import Batch, ConcreteDropout, Dataset, FixedMask, Task
from fedpart.methods.evidence.estimates import LastLayer
from fedpart.methods.evidence.laplace import diagonal_laplace, optimal_precision
from fedpart.nn.models import mlp
from fedpart.randomness.noise import Noise, NoiseKey


@pytest.fixture(scope="module")
def data():
    return five_inputs()


@pytest.fixture(scope="module")
def linear():
    return of_five_inputs()


def softmax_regression(weight, bias, data, precision):
    """log p(D) for logits W x + b: the GGN is the Hessian, with the diagonal sum_n p_k (1 - p_k) x_i^2."""
    x, y = data.inputs.double(), data.targets
    weight, bias = weight.detach().double(), bias.detach().double()
    p = (x @ weight.T + bias).softmax(1)
    likelihood = p[range(len(y)), y].log().sum()
    variance = p * (1 - p)
    h = torch.cat([(variance.T @ x.square()).flatten(), variance.sum(0)])
    theta = torch.cat([weight.flatten(), bias])
    return likelihood - 0.5 * precision * theta.square().sum() - 0.5 * (1 + h / precision).log().sum()


@pytest.mark.slow
@pytest.mark.parametrize("precision, batch_size", [(0.01, 7), (1, 100), (50.0, 7)])
def test_softmax_regression(linear, data, precision, batch_size):
    found = diagonal_laplace(linear, data, precision, batch_size=batch_size)
    expected = softmax_regression(linear.weight, linear.bias, data, precision)
    assert found.log_marginal_likelihood == pytest.approx(float(expected), rel=1e-10)
    likelihood = -F.cross_entropy(linear(data.inputs), data.targets, reduction="sum").detach()
    assert found.log_likelihood == pytest.approx(float(likelihood), rel=1e-5)
    assert found.prior_precision == precision


def test_a_network_with_gelu(data):
    """h from the Jacobians of single examples, one output and example at a time."""
    torch.manual_seed(0)
    network = mlp(3, (5,), hidden=(4, 3)).double()
    x, y = data.inputs.double(), data.targets
    parameters = list(network.parameters())
    h, likelihood = 0, 0.0
    for row, label in zip(x, y, strict=True):
        outputs = network(row[None])[0]
        rows = [torch.autograd.grad(o, parameters, retain_graph=True) for o in outputs]
        jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
        p = outputs.detach().softmax(0)
        h = h + torch.diagonal(jacobian.T @ (torch.diag(p) - p[:, None] * p) @ jacobian)
        likelihood += float(p[label].log())
    theta = torch.cat([p.detach().flatten() for p in parameters])
    expected = likelihood - 0.5 * 0.3 * theta.square().sum() - 0.5 * ((h + 0.3) / 0.3).log().sum()
    found = diagonal_laplace(network, data, 0.3)
    assert found.log_marginal_likelihood == pytest.approx(float(expected), rel=1e-10)


def test_optimised_precision_is_the_maximum_and_that_by_hand(linear, data):
    best = diagonal_laplace(linear, data, "optimised")
    for factor in (0.9, 0.99, 1.01, 1.1):
        other = diagonal_laplace(linear, data, factor * best.prior_precision)
        assert other.log_marginal_likelihood < best.log_marginal_likelihood
    assert best.log_likelihood == other.log_likelihood
    # One weight: h / (h + p) = p w^2. With h = 2, w^2 = 1 the root of p^2 + 2 p - 2 = 0.
    assert optimal_precision(torch.tensor([2.0]).double(), 1.0) == pytest.approx(math.sqrt(3) - 1)
    # Without curvature a weight counts in the norm alone; curvature far above p counts fully.
    assert optimal_precision(torch.tensor([1e9, 1e9, 0.0]).double(), 8.0) == pytest.approx(0.25)
    assert optimal_precision(torch.tensor([1e-9]).double(), 4.0) == pytest.approx(1.58e-5, rel=0.01)


def test_masked_weights_contribute_their_prior_alone(linear, data):
    """A linear model behind a mask is the one without those inputs, less p/2 of the weights behind it."""
    masked = diagonal_laplace(nn.Sequential(FixedMask(5, 3), linear), data, 0.3)
    fewer = Dataset(data.inputs[:, :3], data.targets)
    smaller = softmax_regression(linear.weight[:, :3], linear.bias, fewer, 0.3)
    behind = linear.weight[:, 3:].detach().double().square().sum()
    assert masked.log_marginal_likelihood == pytest.approx(float(smaller - 0.15 * behind), rel=1e-10)


def test_hyperparameters_have_no_prior_and_everything_is_left_as_it_was(data):
    torch.manual_seed(0)
    with_dropout = mlp(2, (5,), hidden=(4,), dropout=0.3)
    without = mlp(2, (5,), hidden=(4,))
    without.load_state_dict({k: v for k, v in with_dropout.state_dict().items() if "logit" not in k})
    assert diagonal_laplace(with_dropout, data, 2.0) == diagonal_laplace(without, data, 2.0)
    assert isinstance(with_dropout.dropout1, ConcreteDropout) and with_dropout.dropout1.logit.requires_grad
    torch.manual_seed(0)
    network = mlp(2, (5,), hidden=(4,), dropout=0.3).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    attributes, state = set(vars(network)), torch.get_rng_state()
    diagonal_laplace(network, data, 1.0)
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training and set(vars(network)) == attributes
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in network.parameters())


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
