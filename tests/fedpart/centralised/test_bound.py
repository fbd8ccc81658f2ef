"""L_ML bounds the evidence from below (Appendix A): exactly, in a linear model with a Gaussian prior."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from fedpart import Dataset, Task, Training, TrainingSettings
from fedpart.nn.likelihoods import Gaussian

SIZE, SIZES = 3, (5, 4, 6)
EYE = torch.eye(SIZE, dtype=torch.float64)


@pytest.fixture(scope="module")
def chunks():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(sum(SIZES), SIZE, dtype=torch.float64, generator=generator)
    noise = torch.randn(sum(SIZES), 1, dtype=torch.float64, generator=generator)
    targets = inputs @ torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64) + 0.7 * noise
    return [*map(Dataset, inputs.split(SIZES), targets.split(SIZES))]


def joined(chunks):
    return torch.cat([c.inputs for c in chunks]), torch.cat([c.targets for c in chunks])[:, 0]


def posteriors(chunks, variance, precision):
    """p(w | D_1:k), k = 0..C, for the prior N(0, 1 / precision) and noise of a variance."""
    yield MultivariateNormal(torch.zeros(SIZE).double(), EYE / precision)
    for k in range(1, len(chunks) + 1):
        x, y = joined(chunks[:k])
        inverse = precision * EYE + x.T @ x / variance
        yield MultivariateNormal(torch.linalg.solve(inverse, x.T @ y / variance), precision_matrix=inverse)


def log_evidence(chunks, variance, precision):
    """log p(D): what is observed is Gaussian."""
    x, y = joined(chunks)
    covariance = x @ x.T / precision + variance * torch.eye(len(y)).double()
    return MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y).item()


def expected(weights, chunk, variance):
    """The expectation of log p(D_k | w) over Gaussian weights."""
    rest = (chunk.targets[:, 0] - chunk.inputs @ weights.loc).square().sum()
    rest += (chunk.inputs @ weights.covariance_matrix * chunk.inputs).sum()
    return (-0.5 * (rest / variance + len(chunk) * math.log(2 * math.pi * variance))).item()


@pytest.mark.parametrize("variance, precision", [(0.5, 1.0), (0.1, 0.3), (3.0, 10.0)])
def test_lml_of_networks_from_the_posteriors_is_at_most_the_evidence(chunks, variance, precision):
    """The gap is what a chunk changes about the posterior. An average over points takes the expectation of
    fedpart's L_ML exactly, for it is quadratic in w."""
    after = list(posteriors(chunks, variance, precision))
    task = Task(nn.Linear(SIZE, 1, bias=False), likelihood=Gaussian(variance), samples=1, precision="fp64")
    state = Training(task, chunks, TrainingSettings(method="separate", chunks=(1 / 3, 1 / 3, 1 / 3)))
    values = []
    for direction in torch.cat([EYE, -EYE]) * math.sqrt(SIZE):
        for k in (1, 2):
            state.w[state.partition.slice(k)] = after[k].loc + after[k].scale_tril @ direction
        values.append(state.log_marginal_likelihood())
    lml = sum(values) / len(values)
    first = log_evidence(chunks[:1], variance, precision)
    gap = log_evidence(chunks, variance, precision) - first - lml  # of log p(D_2:C | D_1)
    assert lml == pytest.approx(sum(expected(after[k], chunks[k], variance) for k in (1, 2)), rel=1e-10)
    assert gap > 0 and gap == pytest.approx(
        sum(kl_divergence(after[k], after[k + 1]).item() for k in (1, 2)), rel=1e-9
    )


@pytest.mark.parametrize("spread", [0.7, 1.0, 1.5])
def test_the_gap_of_approximate_posteriors_is_that_of_equation_12(chunks, spread):
    """The first is the prior, and others are too narrow or too wide; the assumptions hold for them here."""
    prior, *after = posteriors(chunks, 0.5, 1.0)
    q = [prior, *(MultivariateNormal(p.loc, spread * p.covariance_matrix) for p in after)]
    p = [prior, *after]
    lml = sum(expected(q[k], chunk, 0.5) for k, chunk in enumerate(chunks))
    gap = log_evidence(chunks, 0.5, 1.0) - lml
    differences = [kl_divergence(q[k], p[k + 1]) - kl_divergence(q[k], p[k]) for k in range(len(chunks))]
    assert gap > 0 and gap == pytest.approx(sum(differences).item(), rel=1e-9)
