"""Masks over input features, and noise on inputs: what they let through, their gradient, their noise."""

import math

import pytest
import torch
from draws import alike
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


def masked_task(mask, samples=1):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(mask.features, 8), nn.ReLU(), nn.Linear(8, 2))
    return Task(network, transforms=[mask], samples=samples)


def loss_and_gradients(task, batch, noise=None):
    w = {name: p.detach().clone().requires_grad_() for name, p in task.module.named_parameters()}
    psi = task.psi_space.initial().clone().requires_grad_()
    loss = task.loss(w, psi, batch, noise)
    wanted = {**w, **({"psi": psi} if psi.numel() else {})}
    return loss.detach(), dict(zip(wanted, torch.autograd.grad(loss, wanted.values()), strict=True))


def test_a_task_may_have_a_transform_without_psi():
    """The masked features are nothing to the model: neither its loss nor its gradients know them."""
    task = masked_task(FixedMask(6, 4))
    assert task.psi_names == () and task.physical(task.psi_space.initial()) == {}
    x, y = torch.randn(9, 6), torch.randint(0, 2, (9,))
    other = torch.cat([x[:, :4], torch.randn(9, 2)], 1)
    loss, gradients = loss_and_gradients(task, Batch(x, y))
    same, same_gradients = loss_and_gradients(task, Batch(other, y))
    assert torch.equal(loss, same)
    assert all(torch.equal(gradients[name], same_gradients[name]) for name in gradients)
    assert not gradients["0.weight"][:, 4:].any() and gradients["0.weight"][:, :4].any()


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


def test_rows_and_features_are_independent_and_the_noise_decides():
    mask = ConcreteMask(3, temperature=1.0)
    values = sampled(mask, 20_000).detach()
    assert len(values.unique()) > 0.9 * values.numel()
    assert torch.corrcoef(values.T).fill_diagonal_(0).abs().max() < 5 / math.sqrt(20_000)
    assert torch.corrcoef(torch.stack([values[:-1, 0], values[1:, 0]]))[0, 1].abs() < 5 / math.sqrt(20_000)
    assert torch.equal(sampled(mask, 20_000), sampled(mask, 20_000))
    assert not torch.equal(sampled(mask), sampled(mask, counter=(1,)))
    assert torch.equal(sampled(mask, 5), sampled(mask, 20_000)[:5]), "further rows change nothing"


def test_it_samples_in_evaluation_too():
    mask = ConcreteMask(3).eval()
    assert len(sampled(mask, 50).unique(dim=0)) > 40


def test_extreme_noise_and_logits_stay_finite():
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
    assert noise.eval()(x).ne(x).all()


def test_the_type_stays():
    assert InputNoise()(torch.zeros(3, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
