"""What all methods have in common: what they can do, their defaults, and what they see of a run."""

import dataclasses
import inspect

import pytest
import torch
from problems import after, chain_net, settings
from torch.nn import functional as F

from fedpart import AffineAugmentation, Dataset, Federation, LocalSettings, Protocol, Task
from fedpart.methods import CentralMethod, FederatedMethod
from fedpart.methods.augerino import Augerino
from fedpart.nn.models import digits_cnn


@pytest.mark.parametrize("name", ["plan", "steps", "feedback", "evidence"])
def test_what_a_method_does_not_define_it_says(name):
    class Nothing(FederatedMethod, CentralMethod):
        pass

    arguments = [None] * (len(inspect.signature(getattr(Nothing, name)).parameters) - 1)
    with pytest.raises(TypeError, match=rf"^Nothing .*does not define {name}\(\)\.$"):
        getattr(Nothing(), name)(*arguments)


def test_what_a_method_changes_for_single_clients_tells_them_apart():
    assert not FederatedMethod().tells_clients_apart
    for changes in ("local_psi", "local_settings", "objective", "held_out"):
        assert type("Changed", (FederatedMethod,), {changes: lambda *_: None})().tells_clients_apart


def view(psi=None):
    return Protocol(Task(chain_net()), settings(3)).view(1, 2, psi)


def test_views_are_equal_only_to_themselves_and_a_plan_has_no_psi():
    seen = view(torch.zeros(2))
    assert seen == seen and seen != dataclasses.replace(seen) and len({seen, seen}) == 1
    psi = torch.ones(1)
    given = view(psi).server_psi()
    assert torch.equal(given, psi) and given is not psi  # a method may write into its own
    with pytest.raises(ValueError, match="depends on the client, its chunk and the round, not on psi"):
        view().server_psi()


def task(*transforms):
    torch.manual_seed(0)
    chosen = transforms or [AffineAugmentation(initial=0.1)]
    return Task(digits_cnn(input_shape=(1, 8, 8)), transforms=chosen, samples=2)


RAW = [0.5, -1.0, 2.0, 0.0, 1.0, -3.0]


def regulariser(method, prepared, raw):
    """Value and gradient at raw widths."""
    psi = prepared.psi_space.initial()
    psi[:6] = torch.tensor(raw)
    psi.requires_grad_()
    value = method.regulariser(prepared, psi)
    return value.item(), torch.autograd.grad(value, psi)[0]


def test_value_and_gradient():
    method = Augerino(weight=0.02)
    value, gradient = regulariser(method, method.prepare(task()), RAW)
    leaf = torch.tensor(RAW, requires_grad=True)
    expected = -0.02 * F.softplus(leaf).square().sum().sqrt()
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient[:6], leaf.grad)
    assert (gradient[6:] == 0).all()


@pytest.mark.parametrize("place", range(6))
def test_safe_switch(place):
    """Any width of 10 or more switches off the whole term: value and gradient, for all six."""
    prepared = Augerino().prepare(task())
    for options, width, switched_off in (
        ({"safe": True}, 10.0, True),  # softplus(10) > 10
        ({"safe": False}, 10.0, False),
        ({"safe": True}, 9.99, False),  # softplus(9.99) < 10
        ({"limit": 9.0}, 9.99, True),
    ):
        raw = [*RAW[:place], width, *RAW[place + 1 :]]
        value, gradient = regulariser(Augerino(**options), prepared, raw)
        if switched_off:
            assert value == 0 and (gradient == 0).all()
        else:
            assert value < -0.09 and (gradient[:6] < 0).all()


def prepared(of, **options):
    return Augerino(**options).prepare(of).transforms["affine"]


def test_augerinos_family_takes_the_place_and_a_start_of_the_tasks_own_is_kept():
    original = task(AffineAugmentation("minmax", initial=0.1, align_corners=False, padding="border"))
    transform, given = prepared(original), task(AffineAugmentation("augerino", initial=-5.0))
    assert (transform.family, transform.align_corners, transform.padding) == ("augerino", False, "border")
    assert original.transforms["affine"].family == prepared(original, family=None).family == "minmax"
    starts = (
        prepared(original),
        prepared(original, initial=-2.0),
        prepared(given),
        prepared(given, initial=1.0),
    )
    assert [start.range.tolist() for start in starts] == [[at] * 6 for at in (0.0, -2.0, -5.0, 1.0)]


@pytest.mark.parametrize("safe", [True, False])
def test_dropout_rates_stay_frozen_and_widths_learn(safe):
    method = {"method": "augerino", "method_options": {"safe": safe}}
    federation = Federation(Protocol(task(), settings(3, cohort=2, **method)))
    assert federation.protocol.partition.chunks == 1
    before = {name: value.clone() for name, value in federation.psi_tensors().items()}
    shards = [Dataset(torch.rand(5, 1, 8, 8), torch.arange(5)) for _ in range(3)]
    after(2, federation, shards)
    assert list(before) == ["affine.range", "dropout1.logit", "dropout2.logit", "dropout3.logit"]
    moved = {name: (value != before[name]).all() for name, value in federation.psi_tensors().items()}
    assert [name for name, changed in moved.items() if changed] == ["affine.range"]


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
