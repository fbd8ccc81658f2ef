"""What all methods have in common: what they can do, their defaults, and what they see of a run."""

import dataclasses
import inspect

import pytest
import torch
from problems import chain_net, settings
from torch import nn

from fedpart import ParameterSpace, Protocol, Task
from fedpart.methods import METHODS, CentralMethod, FederatedMethod
from fedpart.methods.base import Schedule

CAN = {  # federated, centralised, with an evidence of its own
    "augerino": (True, True, False),
    "fedavg": (True, False, False),
    "fedex": (True, False, False),
    "fedrolex": (True, False, False),
    "fjord": (True, False, False),
    "heterofl": (True, False, False),
    "laplace": (False, True, True),
    "none": (False, True, False),
    "partitioned": (True, True, False),
    "separate": (False, True, False),
    "validation": (False, True, False),
}
DEFAULTS = {  # of published code, or of the paper, where they have them
    "augerino": {"weight": 0.01, "safe": True, "limit": 10.0, "family": "augerino", "initial": None,
                 "psi_gradient": "training"},
    "fedavg": {"augment": False},
    "fedex": {"arms": {"dropout": (0.025, 0.05, 0.1, 0.2, 0.4)}, "space": None, "eps": 0.1, "arms_seed": 0,
              "held_out": 0.2, "score": "error", "difference": False, "schedule": "aggressive",
              "discount": 0.5, "cutoff": 1e-4, "augment": False},
    "fedrolex": {"augment": False},
    "fjord": {"distil": False, "augment": False},
    "heterofl": {"mask_classes": False, "augment": False},
    "laplace": {"evidence": "kfac", "burn_in": 10, "precision_steps": 4, "batches": 100, "batch": 25,
                "final_rate": 0.1},
    "none": {"augment": False},
    "partitioned": {},
    "separate": {},
    "validation": {"finetune_epochs": 0, "finetune_learning_rate": None},
}  # fmt: skip


def test_what_a_method_can_do():
    methods = {name: METHODS[name] for name in CAN}
    assert {n: (m.federated, m.centralised, m.estimates) for n, m in methods.items()} == CAN


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_run_that_sets_no_option_has_the_defaults_that_are_told(name):
    parameters = inspect.signature(METHODS[name]).parameters
    assert {key: p.default for key, p in parameters.items()} == DEFAULTS[name]


@pytest.mark.parametrize("name", ["fedavg", "fjord", "heterofl", "augerino", "fedex"])
def test_a_space_of_all_networks_is_the_one_that_is_partitioned(name):
    task, space = Task(chain_net()), ParameterSpace(nn.Linear(5, 4))
    assert METHODS.make(name, {}).partition(task, (1.0,), settings(3), space).space is space


@pytest.mark.parametrize("name", ["plan", "steps", "feedback", "evidence"])
def test_what_a_method_does_not_define_it_says(name):
    class Nothing(FederatedMethod, CentralMethod):
        pass

    arguments = [None] * (len(inspect.signature(getattr(Nothing, name)).parameters) - 1)
    with pytest.raises(TypeError, match=rf"^Nothing .*does not define {name}\(\)\.$"):
        getattr(Nothing(), name)(*arguments)


def test_plain_federated_learning_is_what_a_method_does_by_itself():
    protocol = Protocol(Task(chain_net()), settings(3))
    method, view = FederatedMethod(), protocol.view(0, 1, protocol.task.psi_space.initial())
    assert method.local_psi(view) is view.psi and method.local_settings(view) is view.local
    assert method.architectures(view, 3) == [0, 0, 0]
    assert method.trained_psi(view.task) == view.task.psi_names
    assert method.proportions([0.7, 0.3]) == (0.7, 0.3)
    assert CentralMethod().stages(9, 8, 7) == {"trained": 9}
    assert CentralMethod().psi_slices(view.task) == [slice(None)]
    assert not method.tells_clients_apart
    for changed in ("local_psi", "local_settings", "objective"):
        assert type("Changed", (FederatedMethod,), {changed: lambda *_: None})().tells_clients_apart
    assert type("Changed", (FederatedMethod,), {"held_out": 0.1})().tells_clients_apart


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
