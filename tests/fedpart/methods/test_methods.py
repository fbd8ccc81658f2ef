"""What all methods have in common: what they can do, their defaults, and what they see of a run."""

import dataclasses
import inspect

import pytest
import torch
from problems import after, chain_net, settings
from torch import nn
from torch.nn import functional as F

from fedpart import AffineAugmentation, Dataset, Federation, LocalSettings, ParameterSpace, Protocol, Task
from fedpart.methods import METHODS, CentralMethod, FederatedMethod
from fedpart.methods.augerino import Augerino
from fedpart.methods.base import Schedule
from fedpart.nn.models import digits_cnn

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


def task(*transforms):
    torch.manual_seed(0)
    chosen = transforms or [AffineAugmentation(initial=0.1)]
    return Task(digits_cnn(input_shape=(1, 8, 8)), transforms=chosen, samples=2)


def regulariser(method, prepared, raw):
    """Value and gradient at raw widths."""
    psi = prepared.psi_space.initial()
    psi[:6] = torch.tensor(raw)
    psi.requires_grad_()
    value = method.regulariser(prepared, psi)
    return value.item(), torch.autograd.grad(value, psi)[0]


def test_value_and_gradient():
    method = Augerino(weight=0.02)
    raw = [0.5, -1.0, 2.0, 0.0, 1.0, -3.0]
    value, gradient = regulariser(method, method.prepare(task()), raw)
    leaf = torch.tensor(raw, requires_grad=True)
    expected = -0.02 * F.softplus(leaf).square().sum().sqrt()
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient[:6], leaf.grad)
    assert (gradient[6:] == 0).all()


@pytest.mark.parametrize("place", range(6))
def test_safe_switch(place):
    """Any width of 10 or more switches off the whole term: value and gradient, for all six."""
    raw = [0.5, -1.0, 2.0, 0.0, 1.0, -3.0]
    raw[place] = 10.0  # softplus(10) > 10
    prepared = Augerino().prepare(task())
    value, gradient = regulariser(Augerino(safe=True), prepared, raw)
    assert value == 0 and (gradient == 0).all()
    value, gradient = regulariser(Augerino(safe=False), prepared, raw)
    assert value < -0.09 and (gradient[:6] < 0).all()
    raw[place] = 9.99  # softplus(9.99) < 10
    value, gradient = regulariser(Augerino(safe=True), prepared, raw)
    assert value < -0.09 and (gradient[:6] < 0).all()
    assert regulariser(Augerino(limit=9.0), prepared, raw)[0] == 0


def test_its_own_family_takes_the_place():
    original = task(AffineAugmentation("minmax", initial=0.1, align_corners=False, padding="border"))
    prepared = Augerino(initial=-2.0).prepare(original)
    transform = prepared.transforms["affine"]
    assert (transform.family, transform.align_corners, transform.padding) == ("augerino", False, "border")
    assert transform.range.tolist() == [-2.0] * 6
    assert original.transforms["affine"].family == "minmax"
    assert Augerino(family=None).prepare(original).transforms["affine"].family == "minmax"
    assert Augerino().prepare(original).transforms["affine"].range.tolist() == [0.0] * 6


def test_a_start_of_the_tasks_own_is_kept():
    prepared = Augerino().prepare(task(AffineAugmentation("augerino", initial=-5.0)))
    assert prepared.transforms["affine"].range.tolist() == [-5.0] * 6
    prepared = Augerino(initial=1.0).prepare(task(AffineAugmentation("augerino", initial=-5.0)))
    assert prepared.transforms["affine"].range.tolist() == [1.0] * 6


@pytest.mark.parametrize("safe", [True, False])
def test_dropout_rates_stay_frozen_and_widths_learn(safe):
    method = {"method": "augerino", "method_options": {"safe": safe}}
    federation = Federation(Protocol(task(), settings(3, cohort=2, **method)))
    assert federation.protocol.partition.chunks == 1
    before = {name: value.clone() for name, value in federation.psi_tensors().items()}
    shards = [Dataset(torch.rand(5, 1, 8, 8), torch.arange(5)) for _ in range(3)]
    after(2, federation, shards)
    learned = federation.psi_tensors()
    assert list(before) == ["affine.range", "dropout1.logit", "dropout2.logit", "dropout3.logit"]
    assert (learned["affine.range"] != before["affine.range"]).all()
    assert all(torch.equal(learned[f"dropout{i}.logit"], before[f"dropout{i}.logit"]) for i in (1, 2, 3))


@pytest.mark.parametrize(("place", "same"), [("server", True), ("training", False)])
def test_where_a_client_takes_the_gradient_of_psi(place, same):
    """At the server's weights, however far local training goes; or along its way."""
    shards = [Dataset(torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6))]
    method, found = {"method": "augerino", "method_options": {"psi_gradient": place}}, []
    for rate in (0.01, 1.0):
        local = LocalSettings(learning_rate=rate, batch_size=2)
        federation = Federation(Protocol(task(), settings(1, local=local, **method)))
        after(1, federation, shards)
        found.append(federation.optimiser_psi.state_dict())
    assert federation.psi_tensors()["affine.range"].ne(0).all()
    assert (str(found[0]) == str(found[1])) == same
