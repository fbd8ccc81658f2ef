"""Algorithm 1 by union-find, similarities of gradients, and options that do not fit."""

import itertools
import math
import random
from functools import partial

import pytest
import refusals
import torch
from test_composed import compose, equal_layers

from fedpart.centralised.sharing import crop_similarity, merged

EXAMPLE = {("a", "b"): 0.9, ("c", "d"): 0.8, ("b", "c"): 0.7}


def brute_force(similarities, epsilon, layers):
    """Connected components of the graph of pairs above epsilon, by spreading labels."""
    label = {layer: layer for layer in layers}
    for _ in layers:
        for (i, j), similarity in similarities.items():
            if similarity > epsilon:
                label[i] = label[j] = min(label[i], label[j])
    return {frozenset(i for i in layers if label[i] == one) for one in label.values()}


def test_two_groups_that_meet_are_one():
    assert merged(EXAMPLE, 0.5) == [["a", "b", "c", "d"]], "the authors' code gives {a, b, c}, {d}"
    assert merged(EXAMPLE, 0.75) == [["a", "b"], ["c", "d"]]


def test_thresholds_at_the_ends():
    assert merged(EXAMPLE, 1.0) == [["a"], ["b"], ["c"], ["d"]]
    assert merged(EXAMPLE, -1.0) == [["a", "b", "c", "d"]]
    assert merged(EXAMPLE, 0.9, "ebadc") == [["e"], ["b"], ["a"], ["d"], ["c"]], "above, and not at it"
    assert merged({}, 0.5, "ab") == [["a"], ["b"]]


@pytest.mark.parametrize("seed", range(5))
def test_neither_the_order_of_pairs_nor_that_in_a_pair_matters(seed):
    draw = random.Random(seed)
    layers = range(9)
    similarities = {pair: draw.uniform(-1, 1) for pair in itertools.combinations(layers, 2)}
    for epsilon in (-0.5, 0.3, 0.8):
        found = merged(similarities, epsilon, layers)
        assert set(map(frozenset, found)) == brute_force(similarities, epsilon, layers)
        shuffled = [*similarities.items()]
        draw.shuffle(shuffled)
        turned = {(j, i) if draw.random() < 0.5 else (i, j): value for (i, j), value in shuffled}
        assert merged(turned, epsilon, layers) == found


def test_a_layer_is_as_similar_as_can_be_to_itself_and_to_its_leading_corner():
    gradient = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    assert crop_similarity(gradient, gradient) == pytest.approx(1.0, abs=1e-12)
    corner = gradient[:3, :2]
    assert crop_similarity(gradient, corner) == pytest.approx(1.0, abs=1e-12), "the rest does not count"
    assert crop_similarity(corner, -2 * gradient) == pytest.approx(-1.0, abs=1e-12)
    other = torch.randn(3, 5, 3, 3, generator=torch.Generator().manual_seed(1))
    a, b = gradient[:3, :4], other[:, :4]
    wanted = ((a * b).sum() / (a.norm() * b.norm())).item()
    assert crop_similarity(gradient, other) == pytest.approx(wanted, rel=1e-5)
    assert crop_similarity(other, gradient) == pytest.approx(wanted, rel=1e-5)


def test_gradients_that_say_nothing():
    assert crop_similarity(torch.zeros(2, 2), torch.ones(3, 2)) == 0
    with pytest.raises(ValueError, match="compare convolutions with convolutions"):
        crop_similarity(torch.ones(2, 2), torch.ones(2, 2, 3, 3))
    with pytest.raises(ValueError, match="is not a number"):
        merged({("a", "b"): math.nan}, 0.5)


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


def test_options():
    call = partial(compose, networks=[equal_layers()])
    refusals.check((f"{kind} {of}", partial(call, kind, **of), says) for kind, of, says in ROWS)
