"""Composed weights: what they are made of, their numbers, and gradients in closed form."""

from functools import partial
from itertools import pairwise
from math import prod

import pytest
import refusals
import torch
from torch import nn
from torch.nn import functional as F

from fedpart.nn.models import mnist_cnn, wrn
from fedpart.partition.sharing import SHARINGS
from fedpart.partition.sharing.bank import _allocated as allocated
from fedpart.partition.sharing.layers import assembled, chains, cut, weight_layers

DOUBLE = torch.float64


def block_sizes(chain):
    """How many numbers each shape of a chain has more than the one before it."""
    return [b - a for a, b in pairwise([0, *map(prod, chain)])]


def equal_layers(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(3)]
    return nn.Sequential(*layers, nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 25, 3)).to(DOUBLE)


def sized(width, seed=0):
    torch.manual_seed(seed)
    a, b = round(4 * width), round(6 * width)
    return nn.Sequential(
        nn.Conv2d(1, a, 3), nn.Conv2d(a, b, 3), nn.Flatten(), nn.Linear(b, b), nn.Tanh(), nn.Linear(b, 3)
    ).to(DOUBLE)


def compose(kind, networks, **options):
    return SHARINGS.make(kind, options).compose(networks)


def numbers(*modules):
    return sum(parameter.numel() for parameter in nn.ModuleList(modules).parameters())


def train(module, steps=10):
    """Outputs and gradients of the first of so many steps, and the outputs after the last."""
    torch.manual_seed(1)
    x, y = torch.randn(8, 4, 5, 5, dtype=DOUBLE), torch.randint(3, (8,))
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser, first = torch.optim.SGD(trained, 0.1, momentum=0.9), None
    for _ in range(steps):
        optimiser.zero_grad()
        outputs = module(x)
        F.cross_entropy(outputs, y).backward()
        first = first or (outputs.detach(), [p.grad.reshape(-1).clone() for p in trained])
        optimiser.step()
    return *first, module(x).detach()


def frozen(networks):
    for network in networks:
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(not name.endswith("alpha"))
    return networks


def test_one_template_for_each_layer_is_the_plain_network_to_the_bit():
    (composed,) = frozen(compose("bank", [equal_layers()]))
    plain, found = train(equal_layers()), train(composed)
    assert torch.equal(plain[0], found[0]) and torch.equal(plain[2], found[2])
    by_size = [sorted(of[1], key=lambda g: (len(g), g.sum().item())) for of in (plain, found)]
    assert all(torch.equal(a, b) for a, b in zip(*by_size, strict=True))
    (independent,) = frozen(compose("bank", [equal_layers()], clusters=[["*"]], budget=3 * 144))
    with torch.no_grad():  # each template is used by one layer
        for one, unit in zip(independent.own.values(), torch.eye(3, dtype=DOUBLE), strict=True):
            one.alpha.copy_(unit)
    torch.testing.assert_close(train(independent)[2], plain[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("coupled", [False, True])
def test_gradients_of_templates_are_sums_over_their_uses_in_closed_form(coupled):
    networks = compose("bank", [sized(1), sized(0.5)], budget=600, coupled=coupled)
    bank, large, small = networks[0].shared["1:0"], *(one.recipes["1"] for one in networks)
    assert len(bank.values) > 1 and networks[1].shared["1:0"] is bank
    weights = [one.weights()["1"] for one in networks]
    torch.manual_seed(2)
    upstream = [torch.randn_like(weight) for weight in weights]
    sum((w * g).sum() for w, g in zip(weights, upstream, strict=True)).backward()
    found = torch.zeros_like(bank.values)
    of_alpha = {}
    for one, recipe, gradient in zip(networks, (large, small), upstream, strict=True):
        block = cut(gradient, recipe.chain)[0]
        name = recipe.alphas[0]
        alpha = (one.own[name] if name in one.own else one.shared[name]).alpha
        found += torch.outer(alpha.detach(), block)
        before, _ = of_alpha.get(name, (0, None))
        of_alpha[name] = before + bank.values.detach() @ block, alpha.grad
    torch.testing.assert_close(bank.values.grad, found, rtol=0, atol=1e-12)
    assert len(of_alpha) == (2 if coupled is False else 1)
    for expected, gradient in of_alpha.values():
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_a_narrower_weight_is_the_leading_corner_of_a_wider_one_where_coefficients_are_coupled():
    networks = compose("bank", [sized(w) for w in (1, 0.75, 0.5)], budget=800, coupled=True)
    wide = networks[0].weights()
    for narrow in networks[1:]:
        for name, weight in narrow.weights().items():
            assert torch.equal(wide[name][tuple(map(slice, weight.shape))], weight)
    apart = compose("bank", [sized(w) for w in (1, 0.5)], budget=800)
    assert not torch.equal(apart[0].weights()["1"][:3, :2], apart[1].weights()["1"])


def test_a_budget_is_kept_and_used_as_far_as_templates_go():
    assert allocated([100, 10], [3, 1], 110, 8) == [1, 1]
    assert allocated([100, 10], [3, 1], 229, 8) == [2, 2]  # what is left takes no more of either
    assert allocated([100, 10], [3, 1], 100000, 8) == [8, 8]
    assert allocated([10, 10], [2, 2], 100, 2) == [2, 2], "as many layers as a bank may have templates"
    with pytest.raises(ValueError, match="one template for each bank takes 110"):
        allocated([100, 10], [3, 1], 109, 8)
    for budget in (500, 700, 1100):
        networks = compose("bank", [sized(1), sized(0.5)], budget=budget)
        banks = {id(m): m for one in networks for m in one.shared.values()}.values()
        held = sum(bank.values.numel() for bank in banks)
        assert budget - max(bank.values.shape[1] for bank in banks) < held <= budget
        uses = sum(len(one.alpha) for network in networks for one in network.own.values())
        private = sum(numbers(network.network) for network in networks)
        assert numbers(*networks) == held + uses + private


def test_layers_of_one_cluster_share_and_blocks_are_cut_and_assembled_again():
    (composed,) = compose("bank", [equal_layers()], clusters=[["0", "2"]])
    assert composed.recipes["0"].banks == composed.recipes["2"].banks != composed.recipes["1"].banks
    shallow = nn.Sequential(*equal_layers()[:2], *equal_layers()[3:])
    deep = compose("bank", [equal_layers(), shallow], clusters="depth")
    assert deep[0].recipes["0"].banks == deep[1].recipes["0"].banks
    assert deep[0].recipes["2"].banks == deep[1].recipes["1"].banks, "the third of four quarters"
    chain = [(2, 2, 3), (2, 4, 3), (5, 4, 3), (7, 6, 3)]
    assert chains([*chain[::-1], (2, 2, 3), (3, 9, 3), (8, 8, 5)]) == [chain, [(3, 9, 3)], [(8, 8, 5)]]
    for shape in chain:
        weight = torch.randn(shape)
        blocks = cut(weight, chain)
        assert [len(block) for block in blocks] == block_sizes(chain)[: len(blocks)]
        assert torch.equal(assembled(blocks, chain), weight)
    assert sum(block_sizes(chain)) == prod(chain[-1])


def test_a_basis_is_a_convolution_of_groups_and_its_penalty_the_distance_from_orthonormal():
    for network in compose("basis", [sized(1), sized(0.5)], inputs=0.25, kernels=0.5):
        basis, combined = network.shared["1:3x3"].values, network.own["1:3x3"].values
        x = torch.randn(2, network.weights()["1"].shape[1], 7, 7, dtype=DOUBLE)
        groups = x.reshape(-1, basis.shape[1], 7, 7)
        between = F.conv2d(groups, basis).reshape(2, -1, 5, 5)
        expected = F.conv2d(between, combined[:, :, None, None])
        torch.testing.assert_close(F.conv2d(x, network.weights()["1"]), expected, rtol=0, atol=1e-12)
    (composed,) = compose("basis", [mnist_cnn()], penalty=3.0)
    for basis in composed.shared.values():
        rows = basis.values.flatten(1)
        if rows.shape[0] <= rows.shape[1]:
            assert basis.penalty(basis.values).item() < 1e-9
        doubled = (2 * rows) @ (2 * rows).t() - torch.eye(len(rows))
        assert basis.penalty(2 * basis.values).item() == pytest.approx(3 * doubled.square().mean().item())


def test_flancs_network_has_its_numbers():
    """Its CNN for Fashion-MNIST by its formula: a head, two composed convolutions, a classifier."""

    def network(r):
        n = round(128 * r)
        body = nn.Conv2d(64, n, 3, bias=False), nn.Conv2d(n, n, 3, bias=False), nn.Flatten()
        return nn.Sequential(nn.Conv2d(1, 64, 3), *body, nn.Linear(n * 49, 10))

    widths = (1, 0.75, 0.5, 0.25)
    plain = [numbers(network(r)) for r in widths]
    composed = compose("basis", [network(r) for r in widths])
    assert plain == [284_554, 185_930, 105_738, 43_978]
    assert [numbers(one) for one in composed] == [135_818, 97_610, 63_498, 33_482]
    assert sum(basis.values.numel() for basis in composed[0].shared.values()) == 6_912


def test_a_layer_may_be_kept_and_layers_with_another_kernel_have_a_basis_each():
    for kind, first in (("bank", "0"), ("basis", "1")):
        (composed,) = compose(kind, [equal_layers()], keep=["1"])
        assert set(composed.recipes) == {first, "2"} - {"1"}
    shallow = nn.Sequential(*equal_layers()[:1], *equal_layers()[3:])
    deep, _ = compose("bank", [equal_layers(), shallow], keep=["2"])
    assert set(deep.recipes) == {"0", "1"}, "though the other network has no such layer"
    other = equal_layers()
    other[1] = nn.Conv2d(4, 4, 5, padding=2, bias=False).double()
    first, second = compose("basis", [equal_layers(), other], inputs=0.5, kernels=0.5)
    assert set(first.shared) & set(second.shared) == {"2:3x3"}
    x = torch.rand(2, 4, 5, 5, dtype=DOUBLE)
    assert first(x).shape == second(x).shape


@pytest.mark.slow
def test_a_wide_residual_network_with_one_template_for_each_layer_has_its_own_numbers():
    """36,479,194 are those of WRN-28-10 for ten classes; a coefficient comes with each bank."""
    with torch.device("meta"):
        network = wrn(10, (3, 32, 32), depth=28, width=10)
    layers = weight_layers([network], (), ())[0]
    shapes = [tuple(network.get_submodule(layer).weight.shape) for layer in layers]
    sizes = [size for shape in shapes for size in block_sizes([shape])]
    assert allocated(sizes, [1] * len(sizes), sum(sizes), 8) == [1] * len(sizes)
    rest = numbers(network) - sum(prod(shape) for shape in shapes)
    assert sum(sizes) + rest == 36_479_194
    (small,) = compose("bank", [wrn(10, (3, 32, 32), depth=10, width=1)])
    assert numbers(small) - len(small.recipes) == 77_850


def test_composed_weights_begin_as_wide_as_plain_ones_and_a_plain_copy_computes_the_same():
    plain = mnist_cnn()
    for kind, options in (("bank", {"budget": 3_000_000}), ("basis", {})):
        (composed,) = compose(kind, [plain], **options)
        for name, weight in composed.weights().items():
            assert 0.8 < (weight.std() / plain.get_submodule(name).weight.std()).item() < 1.25
    (composed,) = compose("bank", [equal_layers()], clusters=[["*"]], budget=2 * 144)
    x = torch.randn(2, 4, 5, 5, dtype=DOUBLE)
    assert torch.equal(composed.plain()(x), composed(x))
    names = [name for name, _ in composed.plain().named_parameters()]
    assert names == [name for name, _ in equal_layers().named_parameters()]


ROWS = [
    ("bank", {"clusters": "width"}, "clusters are layer, depth, or lists"),
    ("bank", {"templates": 0}, "templates is a whole number, at least 1"),
    ("bank", {"budget": "400"}, "budget is a whole number, at least 1"),
    ("bank", {"clusters": ["0", "1"]}, "lists of lists of layers"),
    ("bank", {"clusters": 5}, "lists of lists of layers"),
    ("bank", {"coupled": "yes"}, "coupled is true or false"),
    ("bank", {"clusters": [["convx"]]}, "matches 'convx' of clusters; they are 0, 1, 2"),
    ("bank", {"keep": ["conv*"]}, "No Linear or Conv layer matches 'conv"),
    ("bank", {"keep": "0"}, "keep has lists of names of layers"),
    ("bank", {"budget": 10}, "The budget is 10 numbers, but one template for each bank takes 432"),
    ("bank", {"keep": ["*"]}, "whose weight could be composed"),
    ("basis", {"inputs": 0}, "inputs is a share above 0"),
    ("basis", {"penalty": -1}, "at least 0"),
    ("basis", {"penalty": float("inf")}, "at least 0, and finite"),
    ("basis", {"keep": ["*"]}, "nothing to compose"),
    ("bank", {"numbers": 10}, "does not take the options"),
]


def test_options_of_what_networks_share_that_do_not_fit():
    call = partial(compose, networks=[equal_layers()])
    refusals.check((f"{kind} {of}", partial(call, kind, **of), says) for kind, of, says in ROWS)
