"""Weights of several sizes as blocks, one around the other: each has the leading corner of the next."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

Shape = tuple[int, ...]
"""``[out, in, *kernel]`` of a weight."""


def chains(shapes: Iterable[Shape]) -> list[list[Shape]]:
    """Different shapes, ascending, in as few chains as a greedy pass finds, each inside of the next one."""
    found: list[list[Shape]] = []
    for shape in sorted(set(shapes), key=lambda one: (prod(one), one)):
        fitting = (
            chain
            for chain in found
            if chain[-1][2:] == shape[2:] and all(a <= b for a, b in zip(chain[-1], shape, strict=True))
        )
        if (chain := next(fitting, None)) is None:
            found.append([shape])
        else:
            chain.append(shape)
    return found


def block_sizes(chain: Sequence[Shape]) -> list[int]:
    """How many numbers each shape of a chain has more than the one before it."""
    return [b - a for a, b in pairwise([0, *map(prod, chain)])]


def assembled(blocks: Sequence[Tensor], chain: Sequence[Shape]) -> Tensor:
    """The weight of the shape ``chain[len(blocks) - 1]``, from blocks ``[block_sizes(chain)[b]]``.

    A block has the further inputs of the units before, and then the further units.
    """
    weight = blocks[0].view(chain[0])
    for block, (before, shape) in zip(blocks[1:], pairwise(chain), strict=False):
        kernel = shape[2:]
        split = before[0] * (shape[1] - before[1]) * prod(kernel)
        if split:
            weight = torch.cat([weight, block[:split].view(before[0], -1, *kernel)], 1)
        if shape[0] > before[0]:
            weight = torch.cat([weight, block[split:].view(-1, *shape[1:])], 0)
    return weight


def cut(weight: Tensor, chain: Sequence[Shape]) -> list[Tensor]:
    """Inverse of :func:`assembled`: the blocks of a weight whose shape is in the chain."""
    blocks = [weight[tuple(map(slice, chain[0]))].reshape(-1)]
    for before, shape in pairwise(chain[: chain.index(tuple(weight.shape)) + 1]):
        more_inputs = weight[: before[0], before[1] : shape[1]].reshape(-1)
        blocks.append(torch.cat([more_inputs, weight[before[0] : shape[0], : shape[1]].reshape(-1)]))
    return blocks
