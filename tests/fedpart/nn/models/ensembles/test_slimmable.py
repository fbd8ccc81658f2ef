"""Slimmable networks: narrow ones are leading slices; universally slimmable ones train a few of them."""

import pytest
import torch
from test_deep import made
from torch import nn

from fedpart import Dataset, ParameterSpace, Task, fit
from fedpart.nn.models import digits_cnn, wrn
from fedpart.nn.models.ensembles import UniversallySlimmable, slimmable
from fedpart.randomness.noise import Noise, NoiseKey

WIDTHS = (1, 1.5, 2)


def networks(widths=WIDTHS):
    return [wrn(3, (1, 8, 8), depth=10, width=width) for width in widths]


def norms_of(module):
    layers = (layer for layer in module.modules() if isinstance(layer, nn.GroupNorm))
    return sum(p.numel() for layer in layers for p in layer.parameters())


@pytest.mark.parametrize("build", [wrn, digits_cnn], ids=["wrn", "digits_cnn"])
@pytest.mark.parametrize("own_norms", [True, False])
def test_a_narrow_member_is_the_network_of_the_leading_slices(build, own_norms):
    options, widths = ({"depth": 10}, (1, 2)) if build is wrn else ({"dropout": None}, (0.5, 1))
    narrow, wide = (build(3, (1, 8, 8), width=width, **options) for width in widths)
    before = {name: value.detach().clone() for name, value in wide.named_parameters()}
    own = {name: value.detach().clone() for name, value in narrow.named_parameters()}
    found = slimmable([narrow, wide], own_norms)
    with torch.no_grad():
        for name, value in before.items():  # another step of the wide network's weights
            found.members[1].get_parameter(name).copy_(value := value + 0.01 * torch.randn_like(value))
            before[name] = value
    x = torch.rand(2, 1, 8, 8)
    for member, width in zip(found.members, widths, strict=True):
        plain = build(3, (1, 8, 8), width=width, **options)
        with torch.no_grad():
            for name, value in plain.named_parameters():
                corner = before[name][tuple(slice(length) for length in value.shape)]
                kept = own_norms and width == widths[0] and "norm" in name
                value.copy_(own[name] if kept else corner)
        assert torch.equal(member(x), plain(x))


def test_numbers_of_parameters_and_of_partitioned_ones():
    """The widest network's, and the norms of the others; the norms are there once a partition."""
    sizes, norms = (
        [sum(p.numel() for p in one.parameters()) for one in networks()],
        norms_of(wrn(3, (1, 8, 8), 10, 2)),
    )
    others = sum(map(norms_of, networks()[:2]))
    for own_norms, more in ((True, others), (False, 0)):
        space = ParameterSpace(slimmable(networks(), own_norms), 3)
        assert space.size == sizes[2] + more + 2 * (norms + more)


def test_a_step_of_the_sandwich_rule():
    found, x = UniversallySlimmable(networks((1.5, 1, 2.5, 3, 2)), drawn=3), torch.rand(2, 1, 8, 8)
    every, drawn = found.eval()(x), set()
    assert every.shape == (2, 5, 3)
    found.train()
    for seed in range(12):
        with Noise(NoiseKey(seed, "test")).active():
            outputs = found(x)
        same = [next(i for i in range(5) if torch.equal(out, every[:, i])) for out in outputs.unbind(1)]
        assert len(same) == 3 and {1, 3} < set(same), "the smallest, the largest, and one more"
        drawn |= set(same)
    assert drawn == {0, 1, 2, 3, 4}
    assert UniversallySlimmable(networks(), drawn=3).train()(x).shape == (2, 3, 3)


def test_it_learns_psi_beside_partitioned_weights():
    members = [{"model": "digits_cnn", "width": width} for width in (1.0, 0.5, 0.75)]
    module = made("universally_slimmable", members, {"drawn": 2}, dropout=0.1)
    data = Dataset(torch.rand(30, 1, 8, 8), torch.arange(30) % 3)
    result = fit(Task(module, likelihood="ensemble", samples=1), data, iterations=3, batch_size=6)
    assert result.metrics[-1].lml < 0
    before = Task(module, likelihood="ensemble").psi_space.initial()
    assert len(before) == 3 and not torch.equal(result.state.psi, before)
