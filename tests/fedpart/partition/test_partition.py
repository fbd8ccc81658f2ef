"""Partition: masks, proportions, order, subnetworks, upload figures, refusals."""

import math
from functools import partial

import pytest
import refusals
import torch
from torch import nn

from fedpart import ParameterSpace, RandomPartition, Task, federate
from fedpart.nn.models import digits_cnn
from fedpart.partition.nested import leading
from fedpart.partition.nodes import unit_assignments
from fedpart.partition.partition import AssignedPartition, labels
from fedpart.partition.proportions import check_proportions
from fedpart.randomness.streams import generator

U = (0.7, 0.2, 0.1)


def mixed():
    """Layers of many sizes: a Linear with fewer elements than partitions, norms, an embedding, attention."""
    return nn.ModuleDict(
        {
            "embed": nn.Embedding(13, 8),
            "attention": nn.MultiheadAttention(8, 2),
            "norm": nn.LayerNorm(8),
            "conv": nn.Conv1d(8, 5, 3),
            "tiny": nn.Linear(1, 1),
            "out": nn.Linear(5, 3),
        }
    )


def make(u=U, **options):
    return RandomPartition(ParameterSpace(mixed(), len(u)), u, **options)


@pytest.mark.parametrize("u", [U, (0.9, 0.1), (1.0,), (1 / 255,) * 255])
def test_masks_are_disjoint_and_complete(u):
    partition = make(u)
    counted = torch.zeros(partition.space.size, dtype=torch.int64)
    for k in range(1, len(u) + 1):
        counted[partition.order[partition.slice(k)]] += 1
        assert torch.equal(partition.order[partition.slice(k)], (partition.assignment == k).nonzero()[:, 0])
    assert (counted == 1).all()
    held, size = (partition.assignment, partition.default, partition.order), partition.space.size
    assert [tensor.nbytes for tensor in held] == [size, 4 * size, 8 * size], "a byte a number, as in App. D.2"
    assert sum(partition.sizes) == partition.space.size and partition.bounds[-1] == partition.space.size


@pytest.mark.parametrize("u", [U, (0.9, 0.1), (0.25,) * 4])
def test_proportions_hold_in_every_layer(u):
    partition = make(u)
    layers = {}
    for entry in partition.space.entries:
        own = partition.assignment[entry.offset : entry.offset + entry.size]
        if entry.fold:
            for k, copy in enumerate(own.view(len(u), -1), start=1):
                assert (copy == k).all()
        else:
            layers.setdefault(entry.layer, []).append(own)
    assert set(layers) == {"embed", "attention", "attention.out_proj", "conv", "tiny", "out"}
    for name, parts in layers.items():
        counts = torch.bincount(torch.cat(parts).long(), minlength=len(u) + 1)[1:]
        n = int(counts.sum())
        assert all(abs(c - n * p) <= 1 for c, p in zip(counts.tolist(), u, strict=True)), name
    if len(u) > 2:  # two elements, more partitions: some have none there
        assert (torch.bincount(torch.cat(layers["tiny"]).long(), minlength=len(u) + 1)[1:] == 0).any()


def test_regenerated_from_seed_shapes_and_proportions():
    first, again, other = make(seed=3), make(seed=3), make(seed=4)
    assert torch.equal(first.assignment, again.assignment)
    assert not torch.equal(first.assignment, other.assignment)
    assert first.sizes == other.sizes
    torch.manual_seed(99)
    assert torch.equal(make(seed=3).assignment, first.assignment)
    # Frozen numbers: an assignment that changes makes old checkpoints and mixed versions meaningless.
    tiny = RandomPartition(ParameterSpace(nn.Linear(4, 2), 3), U, seed=7)
    assert tiny.assignment.tolist() == [1, 3, 1, 2, 1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("defaults", ["initial", "zeros"])
def test_subnetwork_is_trained_head_and_default_tail(defaults):
    partition = make(defaults=defaults)
    own, default = torch.randn(partition.space.size), partition.space.initial()
    w = partition.to_partition_order(own)
    assert torch.equal(w, own[partition.order]) and torch.equal(partition.to_own_order(w), own)
    if defaults == "zeros":
        default.zero_()
        for entry in partition.space.entries:
            if entry.fold == "product":
                default[entry.offset : entry.offset + entry.size] = 1
    for k in range(4):
        trained = partition.assignment <= k
        assert torch.equal(partition.subnetwork(w, k), torch.where(trained, own, default))


@pytest.mark.parametrize("seed", [0, 5])
def test_draws_are_of_streams_that_server_and_clients_name_alike(seed):
    """Partitions are never sent: each side draws them, layer by layer."""
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 2))
    space, offset = ParameterSpace(module, 3), 0
    assignment = RandomPartition(space, (0.5, 0.3, 0.2), seed=seed).assignment
    units = unit_assignments(module, (0.5, 0.3, 0.2), seed)
    for index, (name, layer) in enumerate((n, m) for n, m in module.named_children() if n != "1"):
        size = sum(parameter.numel() for parameter in layer.parameters())
        shuffle = generator(seed, "partition", index).permutation(size)
        drawn = assignment[offset : offset + size][torch.from_numpy(shuffle)]
        assert torch.equal(drawn, labels(size, (0.5, 0.3, 0.2)))
        offset += size
        if name != "3":
            shuffle = generator(seed, "node partition", index).permutation(len(layer.bias))
            assert torch.equal(units[name][1], labels(len(layer.bias), (0.5, 0.3, 0.2))[shuffle])


def test_labels_are_as_many_as_the_shares_and_the_cnn_keeps_the_upload_figure():
    assert labels(7, (0.5, 0.3, 0.2)).tolist() == [1, 1, 1, 1, 2, 2, 3]
    assert labels(2, (0.5, 0.5)).dtype == torch.uint8
    partition = RandomPartition(ParameterSpace(digits_cnn(dropout=None), 3), U)
    shares = [size / partition.space.size for size in partition.sizes]
    assert abs(sum(u * sum(shares[k:]) for k, u in enumerate(U)) - 0.77) < 1e-4


def halves(space, proportions, seed):
    """A scheme of one's own, which asks for the seed alone: the first layer's numbers, and the rest."""
    first = torch.arange(space.size) < space.entries[0].size
    return AssignedPartition(space, proportions, torch.where(first, 1, 2).to(torch.uint8))


def test_a_scheme_of_ones_own_is_named_by_its_place():
    data = [(torch.rand(3, 4), torch.zeros(3).long())] * 3
    scheme = f"{__name__}:halves"
    result = federate(Task(nn.Linear(4, 2), samples=1), data, chunks=(0.8, 0.2), rounds=1, scheme=scheme)
    assert result.state.partition.sizes == (8, 2)


def space(chunks, size=9):
    return ParameterSpace(nn.Linear(size, size), chunks)


def test_proportions():
    rows = []
    for u, says in (
        ((0.7, 0.2), "must sum to 1, but .* sums to 0.9"),
        ((0.7, 0.4), "sums to 1.1"),
        ((1.2, -0.2), "must be positive"),
        ((0.8, 0.2, 0.0), "must be positive"),
        ((math.nan, 0.5), "must be positive"),
        ((), "between 1 and 255 {} proportions, got 0"),
        ((1 / 256,) * 256, "between 1 and 255 {} proportions, got 256"),
    ):
        rows.append((f"{u}", partial(check_proportions, u), says.format("chunk")))
        parted = partial(RandomPartition, space(max(1, len(u))), u)
        rows.append((f"a partition by {u}", parted, says.format("parameter")))
    refusals.check((*row, ValueError, says) for *row, says in rows)


def test_partitions():
    partition, data = RandomPartition(space(3), U), [(torch.rand(3, 4), torch.zeros(3).long())] * 3
    subnetwork = partial(partition.subnetwork, partition.space.initial())
    rows = [(f"subnetwork {k}", partial(subnetwork, k), f"numbered 0 .* to 3, got {k}") for k in (-1, 4)]
    empty = "Partition 2 of 2 is empty in the whole model: its share 0.01 of 6 "
    ones = "Unknown default values 'ones'; choose initial or zeros"
    scheme = "Unknown partitioning scheme 'rows': .*Known: node, random"
    other = "made for 2 chunks, but there are 3 parameter proportions"
    rows += [
        ("an empty one", lambda: RandomPartition(space(2, 2), (0.99, 0.01)), empty),
        ("defaults", lambda: RandomPartition(space(3), U, defaults="ones"), ones),
        ("a scheme", lambda: federate(Task(nn.Linear(4, 2)), data, scheme="rows"), scheme),
        ("another number of chunks", lambda: RandomPartition(space(2), U), other),
    ]
    refusals.check((*row, ValueError, says) for *row, says in rows)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))


class Wrong(Scaled):
    stacked_parameters = {"gain": "product"}  # noqa: RUF012


def test_spaces():
    frozen, no_training = nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"
    rows = []
    for module, stacked, says in (
        (Scaled(), {"sclae": "product"}, "no parameter 'sclae': did you mean 'scale'"),
        (Scaled(), {"scale": "mean"}, "'product' or 'sum', not 'mean'"),
        (Wrong(), None, "Wrong declares 'gain' as stacked but has no such parameter"),
        (nn.ReLU(), None, no_training),
        (frozen, None, rf"{no_training}.*; call module.requires_grad_\(True\)"),
    ):
        rows.append((f"a space, {says}", partial(ParameterSpace, module, 2, stacked=stacked), says))
        rows.append((f"a task, {says}", partial(Task, module, stacked=stacked), says))
    largest = ParameterSpace(nn.Sequential(nn.Linear(4, 9)))
    for smaller, says in (
        ([nn.Linear(4, 12)], "'0.weight' of a smaller network has the shape .*12, 4.*no part of"),
        ([nn.Conv1d(4, 2, 1)], "no part of"),
        ([nn.Identity(), nn.Linear(4, 2)], "a parameter '1.weight', .* shape|which the largest"),
    ):
        entries = ParameterSpace(nn.Sequential(*smaller)).entries
        rows.append((f"{smaller}", partial(leading, largest, entries), says))
    refusals.check((*row, ValueError, says) for *row, says in rows)
