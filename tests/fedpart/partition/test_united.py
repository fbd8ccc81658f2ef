"""The numbers of several networks as one space: what they share once, and what is private of each."""

import pytest
import torch
from torch import nn

from fedpart import ParameterSpace, RandomPartition
from fedpart.partition.nested import has_private, labelled, united


class Net(nn.Module):
    """Its norm belongs to it alone."""

    private_parameters = ("norm.*",)

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(width)
        self.first = nn.Linear(40, width)
        self.norm = nn.Linear(width, 30)
        self.last = nn.Linear(30, width)


def spaces(chunks=1, widths=(2, 5, 3)):
    return [ParameterSpace(Net(width), chunks) for width in widths]


def test_private_entries_have_a_name_and_a_layer_for_each_network():
    space = spaces()[1]
    assert [(entry.name, entry.layer) for entry in labelled(space, 4)] == [
        ("first.weight", "first"),
        ("first.bias", "first"),
        ("4:norm.weight", "4:norm"),
        ("4:norm.bias", "4:norm"),
        ("last.weight", "last"),
        ("last.bias", "last"),
    ]
    assert has_private([space]) and not has_private([ParameterSpace(nn.Linear(2, 2))])


def test_what_is_shared_is_that_of_the_largest_and_what_is_private_of_each():
    networks = spaces()
    whole = united(networks)
    sizes = {entry.name: entry.size for entry in whole.entries}
    assert sizes == {
        "first.weight": 200, "first.bias": 5, "last.weight": 150, "last.bias": 5,
        "0:norm.weight": 60, "0:norm.bias": 30, "1:norm.weight": 150, "1:norm.bias": 30,
        "2:norm.weight": 90, "2:norm.bias": 30,
    }  # fmt: skip
    assert whole.size == sum(sizes.values()) == len(whole.initial())
    values = [space.tensors(space.initial()) for space in networks]
    for entry in whole.entries:
        index, _, name = entry.name.rpartition(":")
        part = whole.initial()[entry.offset : entry.offset + entry.size]
        assert torch.equal(part, values[int(index or 1)][name].reshape(-1))


def test_of_equals_the_first_networks_values_are_taken():
    networks = spaces(widths=(3, 3))
    networks[1]._initial += 1
    entry = united(networks).entries[0]
    assert torch.equal(united(networks).initial()[: entry.size], networks[0].initial()[: entry.size])


@pytest.mark.parametrize("network", [0, 1, 2])
def test_proportions_hold_in_every_private_layer(network):
    u = (0.5, 0.3, 0.2)
    whole = united(spaces(3))
    assignment = RandomPartition(whole, u).assignment
    layer = [entry for entry in whole.entries if entry.layer == f"{network}:norm"]
    numbers = torch.cat([assignment[entry.offset : entry.offset + entry.size] for entry in layer])
    for k, share in enumerate(u, start=1):
        assert abs(int((numbers == k).sum()) - share * len(numbers)) <= 1
