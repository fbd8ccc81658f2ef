"""Kinds of ensembles: numbers of parameters, what members share, which image an output is of."""

import pytest
import torch
from torch import nn

from fedpart import Dataset, ParameterSpace, Task, fit
from fedpart.nn.models import MODELS, digits_cnn, wrn
from fedpart.nn.models.ensembles import Mimo, UniversallySlimmable, batch_ensemble, slimmable
from fedpart.randomness.noise import Noise, NoiseKey

SHAPE = (1, 8, 8)
CNN = {"model": "digits_cnn", "width": 0.5}


def made(kind="deep", members=(CNN, CNN), options=None, **more):
    return MODELS.make(
        "ensemble",
        {"num_classes": 3, "input_shape": SHAPE, "kind": kind, "members": members, "options": options} | more,
    )


def test_members_of_any_model_and_size_start_from_values_of_their_own():
    found = made(members=[CNN | {"times": 2}, {"model": "mlp", "hidden": [5]}])
    assert len(found) == 3
    x = torch.rand(4, *SHAPE)
    outputs = found(x)
    assert outputs.shape == (4, 3, 3)
    weights = [torch.cat([p.flatten() for p in m.parameters() if p.dim() > 1]) for m in found.members]
    first, second, _ = weights
    assert len(first) > 100 and (first != second).float().mean() > 0.99
    assert torch.equal(found(x, only=[2, 0]), outputs[:, [2, 0]])
    assert torch.equal(outputs[:, 2], found.members[2](x))


@pytest.mark.parametrize("kind", ["deep", "mimo", "slimmable"])
def test_one_member_is_the_plain_network_to_the_bit(kind):
    """In its outputs, and after steps of training with dropout."""
    data = Dataset(torch.rand(12, *SHAPE), torch.arange(12) % 3)
    torch.manual_seed(0)
    plain = digits_cnn(3, SHAPE, dropout=0.2, width=0.5)
    torch.manual_seed(0)
    one = made(kind, [CNN], dropout=0.2)
    found = []
    for module, likelihood in ((plain, "classification"), (one, "ensemble")):
        task = Task(module, likelihood=likelihood, samples=2)
        settings = {"method": "none", "chunks": (1.0,), "iterations": 3, "batch_size": 6}
        found.append(fit(task, data, **settings).state)
    for name, value in found[0].tensors().items():
        assert torch.equal(value, found[1].tensors()[f"members.0.{name}"])


def numbers(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("members", [1, 3])
def test_numbers_of_parameters(members):
    """M (n_in + n_out) of each layer; with norms of their own their scales and biases too, M - 1 times."""
    plain = wrn(depth=10, width=1)
    layers = [layer for layer in plain.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    more = sum(members * sum(layer.weight.shape[:2]) for layer in layers)
    norms = norms_of(plain)
    for own, besides in ((False, 0), (True, (members - 1) * (norms + 10))):
        found = batch_ensemble([wrn(depth=10, width=1) for _ in range(members)], own_norms=own)
        assert numbers(found) == numbers(plain) + more + besides


def test_a_member_multiplies_a_layers_inputs_and_outputs():
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 4, 3)
    weight, bias = plain.weight.detach().clone(), plain.bias.detach().clone()
    found = batch_ensemble([nn.Sequential(plain), nn.Sequential(nn.Conv2d(3, 4, 3))])
    x = torch.rand(2, 3, 5, 5)
    outputs = found(x)
    for m, member in enumerate(found.members):
        own = member[0].parametrizations.weight[0]
        assert set(own.inputs.tolist()) | set(own.outputs.tolist()) <= {-1.0, 1.0}
        scaled = nn.functional.conv2d(x * own.inputs.view(-1, 1, 1), weight)
        wanted = scaled * own.outputs.view(-1, 1, 1) + bias.view(-1, 1, 1)
        torch.testing.assert_close(outputs[:, m], wanted)
    outputs.sum().backward()
    first, second = (member[0].parametrizations.weight for member in found.members)
    assert first.original is second.original and first[0].inputs is not second[0].inputs


WRN = {"model": "wrn", "depth": 10, "width": 1}


@pytest.mark.parametrize("members", [1, 2, 3])
def test_numbers_of_parameters_of_mimo(members):
    """(M - 1) k^2 c_in c_out in the first layer, and (M - 1) (d + 1) K in the last."""
    found = made("mimo", [WRN | {"times": members}])
    plain = numbers(wrn(3, (1, 8, 8), depth=10, width=1))
    assert numbers(found) == plain + (members - 1) * (9 * 1 * 16 + (64 + 1) * 3)
    assert found.train()(torch.rand(4, 1, 8, 8)).shape == (4, members, 3)
    assert members > 1 or ParameterSpace(found, 3).chunks == 3


def test_outputs_are_put_back_in_the_order_of_their_images():
    """Heads that look at their own input alone answer in training as they do at rest, whatever is drawn."""
    members, features, classes = 3, 4, 2
    network = nn.Linear(members * features, members * classes)
    with torch.no_grad():
        blocks = [torch.randn(classes, features) for _ in range(members)]
        network.weight.copy_(torch.block_diag(*blocks))
    found, x = Mimo(network, members), torch.randn(7, features)
    torch.testing.assert_close(found.train()(x), found.eval()(x))
    torch.testing.assert_close(found(x, only=[2, 0]), found(x)[:, [2, 0]])


def test_rows_of_training_have_several_images_by_the_runs_own_draws():
    found, x = made("mimo", [WRN | {"times": 2}]).train(), torch.rand(6, 1, 8, 8)
    seen = []
    found.members[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for seed in (0, 0, 1):
        with Noise(NoiseKey(seed, "test")).active():
            found(x)
    found.eval()(x)
    first, again, other, rest = seen
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first[:, :1], x) and not torch.equal(first[:, 1:], x)
    assert sorted(first[:, 1:].sum((1, 2, 3)).tolist()) == sorted(x.sum((1, 2, 3)).tolist())
    assert torch.equal(rest, torch.cat([x, x], 1))


WIDTHS = (1, 1.5, 2)


def networks(widths=WIDTHS):
    return [wrn(3, (1, 8, 8), depth=10, width=width) for width in widths]


def norms_of(module):
    return sum(numbers(layer) for layer in module.modules() if isinstance(layer, nn.GroupNorm))


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
    sizes, norms = [*map(numbers, networks())], norms_of(wrn(3, (1, 8, 8), 10, 2))
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
    described = made("universally_slimmable", [WRN | {"width": width} for width in WIDTHS], {"drawn": 2})
    assert described.train()(x).shape == (2, 2, 3) and described.eval()(x).shape == (2, 3, 3)


def test_members_of_two_widths_learn_from_one_budget_with_psi_beside():
    members = [WRN | {"width": width} for width in (2, 1)]
    module = made("composed", members, {"sharing": {"kind": "bank", "clusters": "layer"}}, dropout=0.1)
    wide, narrow = map(numbers, networks((2, 1)))
    assert wide < numbers(module) < wide + narrow / 10, "norms, classifier and coefficients besides the bank"
    data = Dataset(torch.rand(16, 1, 8, 8), torch.arange(16) % 3)
    task = Task(module, likelihood="ensemble", samples=1)
    result = fit(task, data, iterations=2, batch_size=4)
    before = task.psi_space.initial()
    assert result.metrics[-1].lml < 0 and len(before) == 6 and not torch.equal(result.state.psi, before)
    assert result.state.module().eval()(data.inputs).shape == (16, 2, 3)


@pytest.mark.parametrize("kind", [batch_ensemble, slimmable])
def test_one_network_given_twice_is_refused_and_stays_as_it_was(kind):
    net = digits_cnn(3, SHAPE, width=0.5)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(ValueError, match="one object, so one network; make each anew"):
        kind([net, net])
    after = net.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
