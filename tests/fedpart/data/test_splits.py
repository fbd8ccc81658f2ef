"""Every recipe divides the examples: disjoint, complete, nobody empty, and as skewed as it says."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from command_line import fedpart
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_file

from fedpart.data import SPLITS, angle_bins
from simulations.building.experiment import build
from simulations.config.load import load_config

DIRICHLET = ["per_client", "per_client_shares", "per_client_subset", "per_client_total", "per_label"]
BOTH_REMARKS = ["per_client_shares", "per_client_subset"]
LABELS = np.random.default_rng(0).integers(0, 10, 5000)


def assert_partition(shards, examples, clients):
    assert len(shards) == clients
    assert all(shard.dtype == np.int64 and len(shard) >= 1 for shard in shards)
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(examples))


def mixtures(shards, labels=LABELS):
    counts = np.stack([np.bincount(labels[shard], minlength=10) for shard in shards])
    return counts / counts.sum(1, keepdims=True)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), name=st.sampled_from(["iid", *DIRICHLET]))
def test_every_recipe_is_a_partition(data, name):
    labels = np.array(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=80)))
    clients = data.draw(st.integers(1, len(labels)))
    alpha = data.draw(st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 100.0, 1e300]))
    seed = data.draw(st.integers(-3, 10**6))
    assert_partition(SPLITS[name](labels, clients, alpha, seed), len(labels), clients)


@pytest.mark.parametrize("name", ["iid", *DIRICHLET])
def test_seed_decides(name):
    split = SPLITS[name]
    first, again, other = (split(LABELS, 100, 0.1, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    as_tensor = split(torch.as_tensor(LABELS), 100, 0.1, 3)
    assert all(np.array_equal(a, b) for a, b in zip(first, as_tensor, strict=True))


@pytest.mark.parametrize("name", DIRICHLET)
def test_small_alpha_is_skewed_and_large_is_even(name):
    skewed, even = (mixtures(SPLITS[name](LABELS, 50, alpha, 0)).max(1).mean() for alpha in (0.1, 100.0))
    assert skewed > 0.6  # the share of a client's most frequent label
    assert even < 0.25


def test_alpha_per_client_is_a_dirichlets():
    # E[sum of squared shares] of Dirichlet(a, ..., a) over L labels is (a + 1) / (L a + 1);
    # the first clients still find every label in stock.
    labels = np.arange(200_000) % 10
    for name, each in (("per_client", 0.5), ("per_client_total", 0.05)):
        shards = SPLITS[name](labels, 1000, 0.5, 0)[:400]
        found = (mixtures(shards, labels) ** 2).sum(1).mean()
        assert found == pytest.approx((each + 1) / (10 * each + 1), abs=0.05)


def test_most_clients_hold_one_digit_under_the_total_recipe():
    labels = LABELS[:1250]  # App. J.2: with alpha 0.1, most clients have a single digit
    mixed = {name: mixtures(SPLITS[name](labels, 100, 0.1, 0), labels) for name in DIRICHLET}
    single = {name: np.mean(shares.max(1) == 1) for name, shares in mixed.items()}
    assert min(single[name] for name in ("per_client_total", *BOTH_REMARKS)) > 0.5
    assert single["per_client"] < 0.4 and single["per_label"] < 0.4


@pytest.mark.parametrize("name", ["iid", "per_client", "per_client_total"])
@pytest.mark.parametrize("clients", [1, 7, 100, 1249, 1250])
def test_equal_sizes_to_within_one(name, clients):
    sizes = {len(shard) for shard in SPLITS[name](LABELS[:1250], clients, 0.1, 0)}
    assert sizes <= {1250 // clients, -(-1250 // clients)}


@pytest.mark.parametrize("name", BOTH_REMARKS)
def test_both_remarks_on_mnist_hold(name):
    """App. J: most clients have one digit; of 5,000 points a small selection has more than 64."""
    for points in (1250, 5000):
        single, above, far_above = [], [], []
        for seed in range(5):
            shards = SPLITS[name](LABELS[:points], 100, 0.1, seed)
            assert len({len(shard) for shard in shards}) > 5
            single.append(np.mean(mixtures(shards).max(1) == 1))
            above.append(np.mean([len(shard) > 64 for shard in shards]))
            far_above.append(np.mean([len(shard) > 128 for shard in shards]))
        assert 0.5 < np.mean(single) < 0.85 and np.mean(far_above) < 0.02
        assert np.mean(above) == 0 if points == 1250 else 0 < np.mean(above) < 0.25


def test_shares_deal_each_label_in_proportion_and_a_subset_of_all_is_all():
    """In sum over clients, sizes of 10 equal labels at even mixtures are equal; a label is dealt whole."""
    labels = np.arange(20_000) % 10
    counts = np.stack([np.bincount(labels[shard], minlength=10)
                       for shard in SPLITS["per_client_shares"](labels, 100, 1e6, 0)])  # fmt: skip
    assert (abs(counts - 20) <= 2).all()
    # From 50,000 examples on nothing is left out: equal sizes again, as before the subset is taken.
    labels = np.arange(50_000) % 10
    assert {len(shard) for shard in SPLITS["per_client_subset"](labels, 100, 0.1, 0)} == {500}
    assert len({len(shard) for shard in SPLITS["per_client_subset"](labels[:49_000], 100, 0.1, 0)}) > 5


def test_per_label_sizes_differ_nobody_is_empty_and_no_client_is_favoured():
    # 1,250 points at alpha 0.1 would leave about 5 of 100 clients empty, of which the paper says nothing.
    for seed in range(10):
        sizes = [len(shard) for shard in SPLITS["per_label"](LABELS[:1250], 100, 0.1, seed)]
        assert min(sizes) >= 1 and max(sizes) > 25
    assert_partition(SPLITS["per_label"](LABELS[:100], 100, 1e-3, 0), 100, 100)  # exactly one each
    # One label, alpha so small that one client gets everything: it gives the other nine one example each.
    sizes = sorted(len(shard) for shard in SPLITS["per_label"](np.zeros(100, dtype=np.int64), 10, 1e-4, 0))
    assert sizes == [1] * 9 + [91]
    # 5 examples of each of 200 labels on 10 clients at an even mixture: cutting at rounded-down cumulative
    # shares would always give the same five clients everything.
    labels = np.repeat(np.arange(200), 5)
    sizes = [len(shard) for shard in SPLITS["per_label"](labels, 10, 1e6, 0)]
    assert min(sizes) > 70 and max(sizes) < 130


def test_labels_may_be_any_integers():
    gaps = np.array([5, 5, 900, 900, -3, -3])
    for name in SPLITS:
        assert_partition(SPLITS[name](gaps, 3, 0.1, 0), 6, 3)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", DIRICHLET)
def test_ten_times_the_clients_take_ten_times_the_calls(name):
    def split(clients):
        calls = itertools.count()
        sys.setprofile(lambda *event: next(calls))
        try:
            shards = SPLITS[name](np.arange(20_000) % 10, clients, 0.1, 0)
        finally:
            sys.setprofile(None)
        assert_partition(shards, 20_000, clients)
        return next(calls)

    assert split(4_000) < 20 * split(400), "a quadratic recipe takes minutes"


def test_angle_bins():
    edges = np.linspace(-math.pi, math.pi, 11)
    centres = (edges[1:] + edges[:-1]) / 2
    assert angle_bins(centres).tolist() == list(range(10))
    assert angle_bins([-math.pi, math.pi, 0.0, -1e-9]).tolist() == [0, 9, 5, 4]
    assert angle_bins(torch.tensor([-math.pi, math.pi])).tolist() == [0, 9]  # float32 pi is a little above pi
    assert angle_bins(np.array([-0.5, 0.49]), bins=2, max_angle=0.5).tolist() == [0, 1]
    uniform = np.random.default_rng(0).uniform(-math.pi, math.pi, 20_000)
    assert np.bincount(angle_bins(uniform)) == pytest.approx(np.full(10, 2000), rel=0.1)


RECIPES = """
import numpy as np

def alternate(groups, clients, alpha, seed):
    order = np.argsort(np.asarray(groups), kind="stable")[seed:]
    return [np.sort(order[client::clients]) for client in range(clients)]

def same_for_all(groups, clients, alpha, seed):
    return [np.arange(5)] * clients
"""


def test_a_recipe_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_recipes.py").write_text(RECIPES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tiny_file(tmp_path, split={"recipe": "my_recipes:alternate"}, data_seed=2)
    shards = build(load_config(file)).shards
    assert [len(shard) for shard in shards] == [10, 10, 10, 10, 9, 9]  # it leaves two out
    done = fedpart("run", str(file), "--out", "run", "--set", "split.recipe=my_recipes:same_for_all")
    assert done.exit_code == 2 and "which client 0 has" in " ".join(done.output.split())
    assert not (tmp_path / "run").exists()
