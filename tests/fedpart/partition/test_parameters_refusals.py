"""What cannot be partitioned: proportions, spaces, schemes, and networks that are no part of the largest."""

import math
from functools import partial

import refusals
import torch
from torch import nn

from fedpart import ParameterSpace, RandomPartition, Task, federate
from fedpart.partition.nested import leading
from fedpart.partition.proportions import check_proportions

U = (0.7, 0.2, 0.1)


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
