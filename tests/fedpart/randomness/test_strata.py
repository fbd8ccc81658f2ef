"""An example's samples lie in strata of what is drawn: the same expectation from less noise, everywhere."""

from contextlib import nullcontext

import pytest
import torch
from adapted import trained
from problems import CLASSES, SIZE, Shift, assert_near, assert_same, augmentation, chain_net, outputs, shard
from torch import nn

from fedpart import Task, uniform
from fedpart.randomness.noise import Noise, NoiseKey, order
from fedpart.randomness.strata import strata

B, S, C = 4000, 4, 3


def drawn(examples=B, dtype=torch.float32, explicit=True, **options):
    noise = Noise(NoiseKey(0, "test"), dtype=dtype).active() if explicit else nullcontext()
    with strata(S, examples * S), noise:
        return uniform((examples * S, C), torch.zeros(1, dtype=dtype), **options)


@pytest.mark.parametrize("options", [{}, {"coarse": True}, {"explicit": False}], ids=str)
def test_each_stratum_has_one_sample_and_each_sample_is_uniform(options):
    torch.manual_seed(0)
    u = drawn(**options).view(B, S, C)
    assert u.min() > 0 and u.max() < 1
    strata_of = (u * S).long().sort(1).values
    assert torch.equal(strata_of, torch.arange(S).view(1, S, 1).expand(B, S, C))
    columns = u.reshape(B, S * C)  # over examples, every one is uniform; components have orders of their own
    empirical = columns.sort(0).values - (torch.arange(B).view(-1, 1) + 0.5) / B
    assert empirical.abs().max() < 2.0 / B**0.5  # Kolmogorov's bound at 1e-3 for twelve
    correlation = torch.corrcoef(columns.T).view(S, C, S, C)
    for c in range(C):
        others = [d for d in range(C) if d != c]
        assert correlation[:, c, :, others].abs().max() < 0.08
        assert (correlation[0, c, 1:, c] < -0.2).all()  # -1 / (S - 1) but for the place within strata
    within = (u * S) % 1
    assert abs(torch.corrcoef(torch.stack([within.flatten(), (u * S).floor().flatten()]))[0, 1]) < 0.02


def test_precisions_agree_further_rows_change_nothing_and_a_permutation_has_no_strata():
    few = drawn(5)
    assert torch.equal(drawn(7)[: 5 * S], few) and torch.equal(drawn(5, torch.float64).float(), few)
    with strata(S, 8), Noise(NoiseKey(0, "test")).active():
        several = torch.stack([order(8, torch.zeros(1)).argsort() for _ in range(200)])
    with Noise(NoiseKey(0, "test")).active():
        assert torch.equal(several[0], order(8, torch.zeros(1)).argsort())


class Drawing(Shift):
    """Draws as a user may, with torch's own functions."""

    def forward(self, x):
        return x + self.amount * torch.rand(len(x), 1, 1, 1, dtype=x.dtype)


def of(**options):
    return {"transforms": [augmentation()], "samples": 3, **options}


@pytest.mark.quick(1)
@pytest.mark.parametrize("transform", [augmentation, Drawing])
def test_every_engine_computes_with_the_same_strata(transform):
    options = of(stratified=True, transforms=[transform()])
    loop = trained(chain_net(), of=options)
    assert not torch.equal(loop.w, trained(chain_net(), of=of(transforms=[transform()])).w)
    assert_same(trained(chain_net(), of=options, workers=2), loop)
    for kind in ("fused", "grouped"):
        assert_near(trained(chain_net(), of=options, execution=kind), loop)


def test_what_has_one_sample_or_no_transform_is_as_it_was():
    """Dropout's masks, which the network draws, have no strata."""
    for options in ({"samples": 1}, {"transforms": []}):
        one, other = (trained(chain_net(), of=of(stratified=on, **options)) for on in (True, False))
        assert_same(one, other)


@pytest.mark.parametrize("samples", [2, 8])
def test_predictions_have_the_same_mean_and_less_noise(samples):
    """Of a network that is linear in one uniform number, which strata all but integrate: variance / S^2."""

    class Shifted(Shift):
        def forward(self, x):
            return x + self.amount * uniform((len(x), 1, 1, 1), like=x)

    net = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, CLASSES))
    inputs = shard(1).inputs.expand(3000, -1, -1, -1)
    found = []
    for on in (True, False):
        task = Task(net, transforms=[Shifted(1.0)], samples=samples, stratified=on, precision="fp64")
        found.append(outputs(task, inputs, Noise(NoiseKey(1, "test"), dtype=torch.float64)))
    slope = net[1].weight.sum(1).detach().double()
    exact = net(inputs[:1].float()).detach().double() + slope / 2
    for values, variance in zip(found, (samples**-3, samples**-1), strict=True):
        expected = slope.square() * variance / 12
        torch.testing.assert_close(values.var(0), expected, rtol=0.15, atol=0)
        assert ((values.mean(0) - exact[0]).abs() < 4 * (expected / 3000).sqrt() + 1e-7).all()
