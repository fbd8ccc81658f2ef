"""Kronecker-factored Laplace evidence against closed forms that are written out here, in double precision."""

import math

import pytest
import torch
from evidences import draws, evidence, numeric, weights
from problems import Gain, Shift, augmentation, chain_net, shard
from torch import nn

from fedpart import Batch, Task
from fedpart.methods.evidence.estimate import parts_of
from fedpart.methods.evidence.estimates import Kfac
from fedpart.nn.likelihoods import Gaussian
from fedpart.randomness.noise import Noise

N = 12


class Regression:
    """Bayesian linear regression of two targets on five inputs, whose features depend on psi."""

    def __init__(self):
        torch.manual_seed(0)
        x, y = torch.randn(N, 5).double(), torch.randn(N, 2).double()
        likelihood, transforms = Gaussian(0.5, learned=True), {"gain": Gain(), "shift": Shift()}
        known = {"likelihood": likelihood, "samples": 3, "precision": "fp64"}
        self.task = Task(nn.Linear(5, 2), transforms=transforms, **known)
        self.estimate, self.batches, self.y = Kfac(self.task), draws(Batch(x, y)), y
        self.psi = self.task.psi_space.initial()

    def features(self, psi):
        """``[N, 6]``: each example's inputs, averaged over its samples, and a 1."""
        parts = []
        for batch, key in self.batches():
            repeated = batch.inputs.repeat_interleave(self.task.samples, 0)
            rows = self.task.transformed(psi, repeated, Noise(key, dtype=torch.float64))
            parts.append(rows.view(batch.examples, self.task.samples, -1).mean(1))
        x = torch.cat(parts)
        return torch.cat([x, torch.ones(N, 1).double()], 1)

    def variance(self, psi):
        return math.exp(float(self.task.psi_tensors(psi)["likelihood.log_variance"]))

    def exact(self, psi, log_precision):
        """log N(y | 0, variance I + F F' / delta), less what the Laplace evidence leaves out: nothing."""
        f = self.features(psi)
        covariance = self.variance(psi) * torch.eye(N).double() + f @ f.T / log_precision.exp()
        density = torch.distributions.MultivariateNormal(torch.zeros(N).double(), covariance)
        return float(density.log_prob(self.y.T).sum())

    def mode(self, psi, log_precision):
        f = self.features(psi)
        ridge = self.variance(psi) * log_precision.exp() * torch.eye(6).double()
        both = torch.linalg.solve(f.T @ f + ridge, f.T @ self.y).T
        return {"weight": both[:, :5].clone().requires_grad_(), "bias": both[:, 5].clone().requires_grad_()}


@pytest.mark.parametrize("precision", [0.2, 3.0])
def test_linear_regression_is_exact(precision):
    """At the mode; and the derivative is that of the exact evidence, since there it does not depend on w."""
    problem, own = Regression(), torch.tensor([precision]).double().log()
    w = problem.mode(problem.psi, own[0])
    found = evidence(problem.estimate, w, problem.psi, own, problem.batches)
    assert found == pytest.approx(problem.exact(problem.psi, own[0]), rel=1e-10)
    total = problem.estimate.total(w, problem.psi, problem.batches)
    gradient = problem.estimate.gradient(total, problem.psi, own, problem.batches)
    expected = numeric(lambda psi: problem.exact(psi, own[0]), problem.psi)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)
    of_own = numeric(lambda d: problem.exact(problem.psi, d[0]), own)
    torch.testing.assert_close(problem.estimate.own_gradient(total, own), of_own, rtol=1e-6, atol=1e-6)


def small(samples=2):
    """Two layers of 23 weights behind a transform and with a hyperparameter between them."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.Tanh(), Gain(), nn.Linear(3, 3, bias=False))
    return Task(net, transforms=[Shift()], samples=samples, precision="fp64")


def data(shape=(2,)):
    torch.manual_seed(2)
    return Batch(torch.randn(N, *shape).double(), torch.randint(0, 3, (N,)))


def test_the_determinant_is_that_of_the_dense_kronecker_matrix():
    """A and G from Jacobians of single examples by the weights: J_n = a_n (x) g_n where S = 1."""
    task, batch = small(samples=1), data()
    estimate, batches = Kfac(task), draws(batch)
    w, psi = weights(task), task.psi_space.initial()
    own = torch.tensor([0.3, -0.7]).double()
    blocks = {layer: [0, 0] for layer in estimate.layers}
    likelihood = 0
    for part, key in batches():
        for row, label in zip(estimate.outputs(w, psi, part, key), part.targets, strict=True):
            p = row.detach().softmax(0)
            likelihood = likelihood + float(p[label].log())
            for layer in estimate.layers:
                g = [torch.autograd.grad(r, parts_of(w, layer)[0], retain_graph=True)[0] for r in row]
                jacobian = torch.stack(g)  # [K, out, in] = g[k, out] a[in]
                if layer == "1":  # the bias' derivative is g itself
                    g = torch.stack([torch.autograd.grad(r, w["1.bias"], retain_graph=True)[0] for r in row])
                    largest = g.abs().argmax()
                    inputs = jacobian.flatten(0, 1)[largest] / g.flatten()[largest]
                    a = torch.cat([inputs, torch.ones(1).double()])
                else:  # the last layer's is the identity
                    g, a = torch.eye(3).double(), jacobian[0, 0]
                blocks[layer][0] = blocks[layer][0] + torch.outer(a, a)
                blocks[layer][1] = blocks[layer][1] + g.T @ (torch.diag(p) - torch.outer(p, p)) @ g
    expected = likelihood
    for layer, log_precision in zip(estimate.layers, own, strict=True):
        delta = log_precision.exp()
        a, g = blocks[layer]
        dense = torch.kron(a, g) / N
        prior = delta * torch.eye(len(dense)).double()
        theta = torch.cat([part.detach().flatten() for part in parts_of(w, layer)])
        expected = expected - delta * theta.square().sum() / 2
        expected = expected - (torch.logdet(dense + prior) - len(dense) * log_precision) / 2
    assert evidence(estimate, w, psi, own, batches) == pytest.approx(float(expected), rel=1e-10)


NETWORKS = {
    "dense": lambda: (small(), data()),
    "convolution": lambda: (
        Task(chain_net().double(), transforms=[augmentation()], samples=2, precision="fp64"),
        Batch(shard(N).inputs.double(), shard(N).targets),
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_the_gradient_is_that_of_finite_differences(network):
    """By psi of transforms and inside the network, with noise that stays; batch by batch."""
    task, batch = NETWORKS[network]()
    estimate, batches, w = Kfac(task), draws(batch), weights(task)
    psi, own = task.psi_space.initial(), 0.5 * torch.randn(len(estimate.layers)).double()
    total = estimate.total(w, psi, batches)
    gradient = estimate.gradient(total, psi, own, batches)
    expected = numeric(lambda at: evidence(estimate, w, at, own, batches), psi, 1e-6)
    assert expected.abs().max() > 1e-2 and (expected.abs() > 1e-5).double().mean() > 0.4
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    assert total.examples == N
    of_own = numeric(lambda at: evidence(estimate, w, psi, at, batches), own)
    torch.testing.assert_close(estimate.own_gradient(total, own), of_own, rtol=1e-6, atol=1e-6)


def test_of_a_convolution_inputs_are_averaged_over_places_and_gradients_summed():
    """Four places of patches of 2x2, every second pixel of 4x4; outputs are the convolution's own."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(2, 3, 2, stride=2), nn.Flatten())
    task, batch = Task(net, samples=1, precision="fp64"), data((2, 4, 4))
    w, delta = weights(task), 0.6
    a, g, expected = torch.zeros(9, 9).double(), torch.zeros(3, 3).double(), 0.0
    for image, label in zip(batch.inputs, batch.targets, strict=True):
        patches = [image[:, i : i + 2, j : j + 2].flatten() for i in (0, 2) for j in (0, 2)]
        rows = torch.stack([torch.cat([patch, torch.ones(1).double()]) for patch in patches])
        kernel = torch.cat([w["0.weight"].flatten(1), w["0.bias"][:, None]], 1).detach()
        p = (kernel @ rows.T).flatten().softmax(0)  # [channel, place]
        expected += float(p[label].log())
        a += rows.T @ rows / 4
        hessian = (torch.diag(p) - torch.outer(p, p)).view(3, 4, 3, 4)
        g += sum(hessian[:, place, :, place] for place in range(4))
    theta = torch.cat([value.detach().flatten() for value in w.values()])
    expected -= delta * float(theta.square().sum()) / 2
    expected -= float(torch.logdet(torch.eye(27).double() + torch.kron(a, g) / (N * delta))) / 2
    own = torch.tensor([delta], dtype=torch.float64).log()
    found = evidence(Kfac(task), w, task.psi_space.initial(), own, draws(batch))
    assert found == pytest.approx(expected, rel=1e-10)


def test_places_of_a_linear_layer_may_lie_in_two_dimensions():
    task, own = (
        Task(nn.Sequential(nn.Linear(2, 3), nn.Flatten()), samples=1, precision="fp64"),
        torch.zeros(1),
    )
    square, w, psi = data((2, 2, 2)), weights(task), task.psi_space.initial()
    row = Batch(square.inputs.flatten(1, 2), square.targets)
    found = [evidence(Kfac(task), w, psi, own, draws(batch)) for batch in (square, row)]
    assert found[0] == pytest.approx(found[1], rel=1e-12)
