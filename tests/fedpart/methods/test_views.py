"""What methods see of a run: nothing that they may change, psi where there is one, when psi is stepped."""

import dataclasses

import pytest
import torch
from problems import chain_net, settings

from fedpart import Protocol, Task
from fedpart.methods.base import Schedule


def view(psi=None):
    return Protocol(Task(chain_net()), settings(3)).view(1, 2, psi)


def test_a_method_cannot_change_what_it_sees():
    for seen, name in ((view(), "round"), (Schedule((1.0,), 10, 2, True), "iterations")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(seen, name, 7)


def test_views_are_equal_only_to_themselves():
    """They hold tensors, which have no one truth value to compare by."""
    psi = torch.zeros(2)
    seen = view(psi)
    assert seen == seen and seen != dataclasses.replace(seen) and len({seen, seen}) == 1


def test_a_plan_has_no_psi():
    psi = torch.ones(1)
    assert view(psi).server_psi() is psi
    with pytest.raises(ValueError, match="depends on the client, its chunk and the round, not on psi"):
        view().server_psi()


def test_psi_is_stepped_every_so_many_iterations():
    schedule = Schedule((0.5, 0.5), 10, 3, learns_psi=True)
    assert [i for i in range(1, 11) if schedule.steps_psi(i)] == [3, 6, 9]
    assert not any(Schedule((1.0,), 10, 3, learns_psi=False).steps_psi(i) for i in range(1, 11))
