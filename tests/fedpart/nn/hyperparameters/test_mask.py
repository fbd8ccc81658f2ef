"""Masks over input features, and noise on inputs: what they let through, their gradient, their noise."""

import math

import pytest
import torch
from draws import alike
from problems import initial
from torch import nn

from fedpart import Batch, ConcreteMask, FixedMask, InputNoise, Task, normal
from fedpart.randomness.noise import Noise, NoiseKey


def sampled(mask, rows=1, seed=0, counter=()):
    with Noise(NoiseKey(seed, "test", counter)).active():
        return mask(torch.ones(rows, mask.features))


@pytest.mark.parametrize(
    "kept", [3, [1, 1, 1, 0, 0], (True, True, True, False, False), torch.tensor([1, 1, 1, 0, 0])]
)
def test_fixed_mask_keeps_the_same_features_of_every_row(kept):
    x = torch.randn(7, 5)
    masked = FixedMask(5, kept)(x)
    assert torch.equal(masked[:, :3], x[:, :3]) and not masked[:, 3:].any()
    assert torch.equal(FixedMask(5, 5)(x), x)
    double = FixedMask(5, kept)(x.double())
    assert double.dtype == torch.float64 and torch.equal(double.float(), masked)
    assert FixedMask(4, [0, 1, 0, 1])(torch.ones(1, 4)).tolist() == [[0, 1, 0, 1]]


def test_a_task_may_have_a_transform_without_psi():
    """The masked features are nothing to the model: neither its loss nor its gradients know them."""
    task = Task(nn.Linear(6, 2), transforms=[FixedMask(6, 4)], samples=1)
    assert task.psi_names == () and task.physical(task.psi_space.initial()) == {}
    x, y, found = torch.randn(9, 6), torch.randint(0, 2, (9,)), []
    for rows in (x, torch.cat([x[:, :4], torch.randn(9, 2)], 1)):
        w, psi = initial(task)
        w = {name: value.requires_grad_() for name, value in w.items()}
        loss = task.loss(w, psi, Batch(rows, y), None)
        found.append((loss, *torch.autograd.grad(loss, [*w.values()])))
    assert all(map(torch.equal, *found)) and not found[0][1][:, 4:].any() and found[0][1][:, :4].any()


def test_mean_over_the_noise():
    """At every temperature P(m > 1/2) is the probability; towards 0 the mean is, too."""
    probabilities = torch.tensor([0.02, 0.3, 0.5, 0.9])
    for temperature in (0.01, 0.1, 1.0):
        mask = ConcreteMask(4, temperature=temperature)
        mask.logit.data = torch.logit(probabilities)
        values = sampled(mask, 100_000).detach()
        assert values.min() >= 0 and values.max() <= 1
        error = 5 * (probabilities * (1 - probabilities) / len(values)).sqrt()
        assert ((values > 0.5).float().mean(0) - probabilities).abs().le(error).all()
        if temperature == 0.01:
            assert (values.mean(0) - probabilities).abs().le(error + 2e-3).all()


def test_gradient_of_the_logits():
    """m (1 - m) x / temperature, by hand, of each feature by itself: positive where the input is."""
    mask = ConcreteMask(6, 0.2, 0.3).double()
    x = torch.randn(50, 6, dtype=torch.float64)
    out = alike(lambda: mask(x), seed=1, dtype=torch.float64)
    out.sum().backward()
    m = out.detach() / x
    torch.testing.assert_close(mask.logit.grad, (x * m * (1 - m) / 0.3).sum(0))
    ones = ConcreteMask(6)
    sampled(ones, 100).sum().backward()
    assert (ones.logit.grad > 0).all()


def test_rows_and_features_are_independent_and_extremes_stay_finite():
    mask = ConcreteMask(3, temperature=1.0).eval()  # as in training
    values = sampled(mask, 20_000).detach()
    assert len(values.unique()) > 0.9 * values.numel()
    assert torch.corrcoef(values.T).fill_diagonal_(0).abs().max() < 5 / math.sqrt(20_000)
    assert torch.corrcoef(torch.stack([values[:-1, 0], values[1:, 0]]))[0, 1].abs() < 5 / math.sqrt(20_000)
    assert torch.equal(sampled(mask, 20_000), sampled(mask, 20_000))
    assert not torch.equal(sampled(mask), sampled(mask, counter=(1,)))
    assert torch.equal(sampled(mask, 5), sampled(mask, 20_000)[:5]), "further rows change nothing"
    mask = ConcreteMask(1, temperature=0.01)
    mask.logit.data.fill_(50.0)
    out = sampled(mask, 200_000)
    out.sum().backward()
    assert out.isfinite().all() and mask.logit.grad.isfinite().all() and out.min() > 0.999


def test_what_is_added_is_the_deviation_times_the_runs_normal_noise():
    noise, x = InputNoise(0.3), torch.randn(40, 3, 5)
    out, drawn = alike(lambda: noise(x), lambda: normal(x.shape, like=x))
    torch.testing.assert_close(out, x + 0.3 * drawn)
    out.sum().backward()
    torch.testing.assert_close(noise.log_std.grad, 0.3 * drawn.sum())
    assert noise.eval()(x).ne(x).all() and noise(x.bfloat16()).dtype == torch.bfloat16
