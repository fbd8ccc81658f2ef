"""Networks of several sizes: corners of the largest one's tensors, and what is private of each."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from fedpart import ParameterSpace, RandomPartition
from fedpart.partition.nested import has_private, nested, united
from fedpart.partition.partition import SeparateNetworks

U = (0.5, 0.3, 0.2)
SIZES = [(9, 7), (5, 7), (3, 2)]


def net(units=9, more=7):
    torch.manual_seed(units)
    return nn.Sequential(nn.Linear(4, units), nn.LayerNorm(units), nn.Linear(units, more), nn.Linear(more, 3))


def partitions(u=U, sizes=SIZES):
    spaces = [ParameterSpace(net(*size), len(u)) for size in sizes]
    whole = SeparateNetworks(spaces[0]) if len(u) == 1 else RandomPartition(spaces[0], u, seed=1)
    return whole, nested(whole, spaces)


@pytest.mark.parametrize("u", [(1.0,), U])
def test_a_smaller_network_is_a_corner_of_the_largest(u):
    whole, found = partitions(u)
    assert found[0].bounds == whole.bounds
    w = torch.randn(whole.space.size, generator=torch.Generator().manual_seed(0))
    for k in range(len(u) + 1):
        large = found[0].materialise(w, k)
        for partition, size in zip(found, SIZES, strict=True):
            tensors = partition.materialise(w, k)
            for name, parameter in net(*size).named_parameters():
                assert torch.equal(tensors[name], large[name][tuple(map(slice, parameter.shape))])


def test_one_network_is_divided_as_without_others_and_what_a_client_needs_of_the_server():
    whole, (alone,) = partitions(sizes=SIZES[:1])
    assert alone.cells == alone.bounds == whole.bounds
    assert torch.equal(alone.initial(), whole.initial())
    own = torch.arange(whole.space.size)
    for j in (1, 2, 3):
        assert torch.equal(alone.take(own, j, 3), whole.take(own, j, 3))
        assert torch.equal(alone.subnetwork(whole.initial() + 1, j), whole.subnetwork(whole.initial() + 1, j))
    _, found = partitions()
    w = torch.randn(found[0].bounds[-1])
    for partition in found:
        part = partition.of_server(w)
        assert len(part) == partition.needed == partition.space.size
        back = partition.for_client(part)
        assert torch.equal(partition.subnetwork(back, 3), partition.subnetwork(w, 3))
    assert torch.equal(found[0].for_client(found[0].of_server(w)), w)


@pytest.mark.parametrize("u", [(1.0,), U])
def test_cells_divide_w_and_say_who_has_which_numbers(u):
    _, found = partitions(u)
    cells, w = found[0].cells, torch.arange(found[0].cells[-1])
    parts = [w[a:b] for a, b in pairwise(cells)]
    assert all(len(part) for part in parts) and set(found[0].bounds) <= set(cells)
    assert sum(len(found[0].cell_sizes(j)) for j in range(1, len(u) + 1)) == len(parts)
    for partition in found:
        own = partition.subnetwork(w.float(), len(u)).long()  # where each of its numbers is in w
        mine = torch.cat([part for part in parts if torch.isin(part, own).any()])
        assert torch.equal(mine.sort().values, own.sort().values), "a cell is had as a whole, or not at all"
        for j in range(1, len(u) + 1):
            w_j = partition.take(own, j, len(u))
            held = partition.in_cells(j, w_j)
            assert {number: len(part) for number, part in held.items()} == partition.cell_sizes(j)
            for number, part in held.items():
                assert torch.equal(part, parts[number - 1])
            placed = partition.put(torch.zeros_like(own), j, len(u), w_j)
            assert torch.equal(placed.unique()[-len(w_j) :], w_j)


def test_networks_that_lack_layers_or_overlap_in_part_and_fifty_widths():
    """(5, 3) and (3, 5) have blocks of their own besides the common one; a shallow network lacks a layer."""
    _, found = partitions(sizes=[(9, 7), (5, 3), (3, 5)])
    assert len(found[0].cell_sizes(1)) == 4  # both, either, neither
    deep = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shallow = nn.Sequential(nn.Linear(2, 2))
    spaces = [ParameterSpace(deep), ParameterSpace(shallow)]
    large, small = nested(SeparateNetworks(spaces[0]), spaces)
    assert small.cell_sizes(1) == {1: 6} and large.cell_sizes(1) == {1: 6, 2: 6}
    spaces = [ParameterSpace(nn.Linear(width, 1, bias=False)) for width in range(50, 0, -1)]
    networks = nested(SeparateNetworks(spaces[0]), spaces)
    assert networks[0].cells == tuple(range(51))
    for width, network in enumerate(reversed(networks), start=1):  # what all have comes first
        assert list(network.cell_sizes(1)) == list(range(1, width + 1))


@pytest.mark.parametrize("u", [(1.0,), U])
def test_groups_divide_the_cells_of_each_partition(u):
    """By partition, then by who has the numbers, those of all networks first, then by group."""
    whole, plain = partitions(u)
    whole.groups = torch.arange(whole.space.size) % 7
    networks, w = nested(whole, [network.space for network in plain]), torch.arange(whole.space.size)
    subnetworks = [network.subnetwork(w.float(), len(u)).long() for network in networks]
    place = torch.argsort(subnetworks[0])  # in the largest network's order, as they come in w
    who = sum(torch.isin(w, numbers) * 2**index for index, numbers in enumerate(subnetworks))
    columns = whole.assignment[place], -who, whole.groups[place]
    kinds = list(zip(*(column.tolist() for column in columns), strict=True))
    assert kinds == sorted(kinds)
    starts = networks[0].cells[:-1]
    assert [kinds[start] for start in starts] == sorted(set(kinds))
    assert networks[0].group_of == tuple(kinds[start][2] for start in starts)


class Net(nn.Module):
    private_parameters = ("norm.*",)

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(width)
        self.first = nn.Linear(40, width)
        self.norm = nn.Linear(width, 30)
        self.last = nn.Linear(30, width)


def spaces(chunks=1, widths=(2, 5, 3)):
    return [ParameterSpace(Net(width), chunks) for width in widths]


def test_what_is_shared_is_that_of_the_largest_and_what_is_private_of_each():
    networks = spaces()
    whole = united(networks)
    sizes = {entry.name: entry.size for entry in whole.entries}
    assert sizes == {
        "first.weight": 200, "first.bias": 5, "last.weight": 150, "last.bias": 5,
        "0:norm.weight": 60, "0:norm.bias": 30, "1:norm.weight": 150, "1:norm.bias": 30,
        "2:norm.weight": 90, "2:norm.bias": 30,
    }  # fmt: skip
    assert {entry.layer for entry in whole.entries} >= {"first", "last", "0:norm", "1:norm", "2:norm"}
    assert whole.size == sum(sizes.values()) == len(whole.initial())
    values = [space.tensors(space.initial()) for space in networks]
    for entry in whole.entries:
        index, _, name = entry.name.rpartition(":")
        part = whole.initial()[entry.offset : entry.offset + entry.size]
        assert torch.equal(part, values[int(index or 1)][name].reshape(-1))
    equal = spaces(widths=(3, 3))
    equal[1]._initial += 1
    assert torch.equal(united(equal).initial()[:120], equal[0].initial()[:120]), "of equals the first one's"
    assert has_private(networks) and not has_private([ParameterSpace(nn.Linear(2, 2))])


def test_proportions_hold_in_every_private_layer():
    whole = united(spaces(3))
    assignment = RandomPartition(whole, U).assignment
    for network in range(3):
        layer = [entry for entry in whole.entries if entry.layer == f"{network}:norm"]
        numbers = torch.cat([assignment[entry.offset : entry.offset + entry.size] for entry in layer])
        for k, share in enumerate(U, start=1):
            assert abs(int((numbers == k).sum()) - share * len(numbers)) <= 1
