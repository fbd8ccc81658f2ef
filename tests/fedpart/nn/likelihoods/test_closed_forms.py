"""-log p(y | outputs) of each likelihood, beside torch.distributions and sums over all targets."""

import math

import pytest
import torch
from torch.distributions import Bernoulli, Independent, Normal
from torch.distributions import Poisson as Counts
from torch.nn import functional as F

from fedpart.nn.likelihoods import LIKELIHOODS, Classification, Gaussian, MultiLabel, Ordinal, Poisson
from fedpart.nn.likelihoods import TokenClassification as Tokens
from fedpart.nn.likelihoods.base import AVERAGES

B, S, K, T = 6, 3, 4, 5
DOUBLE = {"rtol": 1e-12, "atol": 1e-12}


def double(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def averaged(likelihood, outputs, average):
    likelihood.double().average = average
    return likelihood.over_samples(outputs)


def test_every_likelihood_is_in_a_test_here():
    here = {"classification", "token_classification", "multilabel", "gaussian", "poisson", "ordinal"}
    assert set(LIKELIHOODS) == here | {"ensemble", "from_model"}, "which have files of their own"


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.7}, {"label_smoothing": 0.2}], ids=str)
@pytest.mark.parametrize("likelihood", [Classification, Tokens])
def test_classes_with_temperature_and_smoothing(likelihood, options, average):
    """(1 - e) p_T + e / K, where p_T is of the mean logits, of the mean logarithm, or the mean of all."""
    logits, y = 3 * double(B, S, K), torch.arange(B) % K
    scaled = logits / options.get("temperature", 1)
    p = {
        "logits": scaled.mean(1).softmax(-1),
        "log_probabilities": scaled.log_softmax(-1).mean(1).exp(),
        "probabilities": scaled.softmax(-1).mean(1),
    }[average]
    e = options.get("label_smoothing", 0)
    expected = -((1 - e) * p[torch.arange(B), y] + e / K).log()
    ends = likelihood(**options)
    outputs = averaged(ends, logits, average)
    if likelihood is Tokens:
        outputs, y = outputs[:, None], y[:, None]
    torch.testing.assert_close(ends(outputs, y), expected, rtol=1e-6, atol=1e-7)  # T and e begin in float32


def test_the_default_is_the_plain_cross_entropy_and_smoothing_bounds_what_one_wrong_label_costs():
    """No label is less probable than e / K, so its cost is at most log(K / e), and its gradient is finite."""
    outputs, targets = torch.randn(B, K), torch.arange(B) % K
    expected = F.cross_entropy(outputs, targets, reduction="none")
    assert torch.equal(Classification()(outputs, targets), expected)
    outputs = torch.tensor([[1e30, 0.0, -1e30]]).requires_grad_()
    ends = Classification(label_smoothing=0.1)
    nll = ends(outputs, torch.tensor([2]))
    assert nll.item() == pytest.approx(math.log(3 / 0.1), rel=1e-6)
    nll.sum().backward()
    assert outputs.grad.isfinite().all() and ends.smoothing_logit.grad.isfinite()


def known_rows():
    """Logits ``[B, T, K]`` and targets: row 0 labelled everywhere, 1 in two places, 2 nowhere."""
    targets = torch.randint(0, K, (3, T), generator=torch.Generator().manual_seed(0))
    targets[1, [0, 2, 4]] = -100
    targets[2] = -100
    return 2 * double(3, T, K), targets


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0, "label_smoothing": 0.1}], ids=str)
def test_positions_without_a_class_count_for_nothing(options):
    outputs, targets = known_rows()
    ends = Tokens(**options).double()
    outputs.requires_grad_()
    nll = ends(outputs, targets)
    single = Classification(**options).double()
    for row in range(2):
        known = targets[row] != -100
        torch.testing.assert_close(nll[row], single(outputs[row][known], targets[row][known]).mean())
    assert nll[2] == 0
    nll.sum().backward()
    assert ((outputs.grad != 0).all(-1) == (targets != -100)).all()
    changed = torch.where((targets != -100)[..., None], outputs.detach(), double(3, T, K, seed=1))
    assert torch.equal(ends(changed, targets), nll)
    padded = torch.where(targets == -100, torch.tensor(-1), targets)
    assert torch.equal(Tokens(ignored=-1, **options).double()(outputs, padded), nll)
    ends.zero_grad()
    ends(ends.over_samples(outputs[:2, None]), torch.full((2, T), -100)).sum().backward()
    assert all(parameter.grad == 0 for parameter in ends.parameters()), "where no position has a class"


def test_shift_scores_the_next_position():
    outputs, targets = known_rows()
    shifted = Tokens(shift=True)
    torch.testing.assert_close(shifted(outputs, targets), Tokens()(outputs[:, :-1], targets[:, 1:]))
    torch.testing.assert_close(shifted.hits(outputs, targets), Tokens().hits(outputs[:, :-1], targets[:, 1:]))
    other = targets.clone()
    other[:, 0] = 0  # nothing comes before the first
    assert torch.equal(shifted(outputs, other), shifted(outputs, targets))


SHAPES = pytest.mark.parametrize(
    "shapes", [((B, 2), (B, 2)), ((B, 1), (B,)), ((B,), (B,)), ((B,), (B, 1)), ((B, 2, 1), (B, 1, 2))]
)


@SHAPES
@pytest.mark.parametrize("learned", [False, True])
def test_gaussian_of_any_variance(learned, shapes):
    outputs, targets = double(*shapes[0]), double(*shapes[1], seed=1)
    ends = Gaussian(variance=0.25, learned=learned).double()
    expected = -Normal(outputs, 0.5).log_prob(targets.reshape(outputs.shape)).reshape(B, -1).sum(1)
    torch.testing.assert_close(ends(outputs, targets), expected, rtol=1e-6, atol=1e-7)
    assert list(ends.physical()) == (["standard_deviation"] if learned else [])
    assert sum(ends.physical().values()) == pytest.approx(0.5 * learned)


def test_multilabel():
    outputs = 2 * double(B, 3)
    targets = torch.randint(0, 2, (B, 3), generator=torch.Generator().manual_seed(0))
    expected = -Independent(Bernoulli(logits=outputs), 1).log_prob(targets.double())
    ends = MultiLabel()
    for given in (targets, targets.bool(), targets.double()):
        torch.testing.assert_close(ends(outputs, given), expected, **DOUBLE)


@SHAPES
def test_poisson(shapes):
    outputs = double(*shapes[0])
    targets = torch.arange(math.prod(shapes[1])).view(shapes[1])
    rates = Counts(outputs.exp()).log_prob(targets.reshape(outputs.shape).double())
    torch.testing.assert_close(Poisson()(outputs, targets), -rates.reshape(B, -1).sum(1), **DOUBLE)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("shape", [(B,), (B, 1)])
def test_ordinal(classes, shape):
    ends = Ordinal(classes).double()
    for parameter in ends.parameters():
        parameter.data += 0.3 * double(parameter.numel()).view(parameter.shape)
    outputs, cuts = double(*shape), ends.cut_points().detach()
    assert cuts.shape == (classes - 1,) and (cuts.diff() > 0).all()
    below = torch.sigmoid(cuts - outputs.reshape(B, 1))
    below = torch.cat([torch.zeros(B, 1), below, torch.ones(B, 1)], 1)
    for k in range(classes):
        found = ends(outputs, torch.full((B,), k)).detach()
        torch.testing.assert_close(found, -(below[:, k + 1] - below[:, k]).log(), rtol=1e-10, atol=1e-12)
    median = torch.stack([(below[:, k + 1] >= 0.5) for k in range(classes)], 1).int().argmax(1)
    assert torch.equal(ends.hits(outputs, median), torch.ones(B, dtype=torch.bool))


@pytest.mark.parametrize("far", [-1e4, -50.0, 50.0, 1e4])
def test_ordinal_stays_finite_and_exact_far_away(far):
    """Far above c_k, p(y = k) is exp(c_k - f) (1 - exp(c_{k-1} - c_k)), no difference of two ones."""
    ends = Ordinal(3)
    outputs = torch.full((1,), far, requires_grad=True)
    low, high = ends.cut_points().detach().double()
    nll = ends(outputs, torch.tensor([1]))
    nearest = -far + low if far < 0 else far - high
    assert nll.item() == pytest.approx((nearest - torch.log(-torch.expm1(low - high))).item(), rel=1e-5)
    nll.sum().backward()
    assert all(of.grad.isfinite().all() for of in (outputs, *ends.parameters()))
    exact = Ordinal(3).double()
    for likelihood in (ends, exact):  # c_1 - c_0 = 1e-5 is less than what float32 tells apart at 1e3
        likelihood.raw_gaps.data.fill_(math.log(math.expm1(1e-5)))
    found, expected = (of(torch.tensor([1e3]).to(of.raw_gaps), torch.tensor([1])) for of in (ends, exact))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_extreme_outputs_cost_finitely_much():
    big = torch.tensor([[1e4, -1e4]])
    for ends, targets in ((Gaussian(), big), (Gaussian(1e-4, learned=True), big), (MultiLabel(), big < 0)):
        assert ends(big, targets).isfinite().all()
    assert Poisson()(torch.tensor([-1e4]), torch.tensor([0])) == 0


@pytest.mark.parametrize("learned", [False, True])
def test_units_of_targets_change_a_gaussian_by_a_constant(learned):
    """y = m + d z: -log p(y) = -log p(z) + log d for each number, with the same gradients."""
    outputs, z, m, d = double(B, S, 2).requires_grad_(), double(B, 2, seed=9), 300.0, 40.0
    plain, units = (Gaussian(variance=0.7, learned=learned) for _ in range(2))
    units.in_units(m, d)
    of_z = plain(averaged(plain, outputs, "logits"), z)
    of_y = units(averaged(units, outputs, "logits"), m + d * z)
    torch.testing.assert_close(of_y, of_z + 2 * math.log(d))
    torch.testing.assert_close(*(torch.autograd.grad(nll.sum(), outputs)[0] for nll in (of_y, of_z)))
    assert repr(units) != repr(plain), "what server and clients agree on"
