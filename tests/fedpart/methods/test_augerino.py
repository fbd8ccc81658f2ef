"""FedAvg + Augerino: the regulariser, its safe switch, the family, what stays frozen."""

import pytest
import torch
from problems import after, settings
from torch.nn import functional as F

from fedpart import AffineAugmentation, Dataset, Federation, LocalSettings, Protocol, Task
from fedpart.methods.augerino import Augerino
from fedpart.nn.models import digits_cnn


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
