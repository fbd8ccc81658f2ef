"""Bounds of hyperparameters in what they mean: wide, finite there, and where a server holds psi."""

import math

import pytest
import torch
from problems import CLASSES, SIZE, augmentation, chain_net, settings, update_of
from torch import nn

import fedpart.nn.hyperparameters as hyper
from fedpart import Federation, Protocol, SGDSettings, Task
from fedpart.federated.cohorts import CohortSum
from fedpart.nn.hyperparameters.affine import AffineAugmentation
from fedpart.nn.hyperparameters.images import ColourJitter, Cutout, GaussianBlur, RandomFlip
from fedpart.nn.hyperparameters.inputs import ConcreteMask, InputNoise
from fedpart.nn.hyperparameters.lora import LoraGate
from fedpart.nn.hyperparameters.signals import TimeMask, TimeShift
from fedpart.nn.likelihoods import Classification, Gaussian, Ordinal

IMAGES, SIGNALS = (4, 3, 9, 9), (4, 2, 9)
KINDS = [
    *((AffineAugmentation(f), IMAGES) for f in ("minmax", "centred", "schwobel", "symmetric", "lila")),
    (ColourJitter(), IMAGES),
    (GaussianBlur(), IMAGES),
    (Cutout(), IMAGES),
    (RandomFlip(), IMAGES),
    (ConcreteMask(9), (4, 9)),
    (InputNoise(), (4, 9)),
    (TimeMask(), SIGNALS),
    (TimeShift(), SIGNALS),
    (hyper.ConcreteDropout(), (4, 9)),
    (LoraGate(), (4, 9)),
]
NAMES = [getattr(kind, "family", type(kind).__name__) for kind, _ in KINDS]


@pytest.mark.parametrize(("kind", "shape"), KINDS, ids=NAMES)
def test_bounds_hold_what_a_kind_starts_from_and_it_computes_there(kind, shape):
    bounds = kind.bounds()
    assert bounds and bounds.keys() <= set(kind.hyperparameters)
    for name, ends in bounds.items():
        value = kind.get_parameter(name)
        start = value.detach().clone()
        low, high = (torch.as_tensor(end).expand_as(start) for end in ends)
        assert (low < start).all() and (start < high).all()
        for bound in (low, high):
            value.data.copy_(torch.where(bound.isfinite(), bound, start))
            assert kind(torch.rand(shape)).isfinite().all()
            assert all(map(math.isfinite, kind.physical().values()))
        value.data.copy_(start)


def step(federation, size):
    """As far as a gradient of one size in all places takes psi."""
    total = update_of(psi=torch.full_like(federation.psi, size), psi_weight=1.0, examples=1, clients=1)
    federation.step(CohortSum(total=total))


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (Classification(temperature=1.5, label_smoothing=0.1), torch.tensor([0, 1, 2, 2])),
        (Gaussian(learned=True), torch.rand(4, 3)),
        (Ordinal(4), torch.tensor([0, 1, 2, 3])),
    ],
    ids=["classification", "gaussian", "ordinal"],
)
def test_a_server_holds_a_likelihoods_hyperparameters_where_it_computes(likelihood, targets):
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 1 if isinstance(likelihood, Ordinal) else 3))
    task = Task(net, likelihood=likelihood)
    outputs = net(torch.rand(4, 9)).detach()
    federation = Federation(Protocol(task, settings(4, server_psi=SGDSettings(1.0))))
    start = federation.psi.clone()
    for sign in (1.0, -1.0):
        federation.psi.copy_(start)
        with pytest.warns(RuntimeWarning, match="held at the bound"):
            step(federation, sign * 1e12)
        assert task.likelihood(outputs, targets, federation.psi).isfinite().all()
        assert all(math.isfinite(one) for one in task.physical(federation.psi).values())
        assert len(federation.held()) == len(task.psi_names)


def test_bounds_in_what_a_person_reads():
    """A full turn, a whole image, a tenth to ten times; rates from a millionth to 99%."""
    net = nn.Sequential(nn.Flatten(), hyper.ConcreteDropout(), nn.Linear(9, 2))
    task = Task(net, transforms=[augmentation()])
    high, low = (task.physical(bound) for bound in reversed(task.psi_bounds))
    assert high["affine.angle_max [deg]"] == pytest.approx(180), "no turn is more than half of one to a side"
    assert high["affine.shift_x_max [%]"] == pytest.approx(100)
    assert (high["affine.scale_x_max"], high["affine.scale_x_min"]) == pytest.approx((10, 0.1))
    assert (low["1.rate [%]"], high["1.rate [%]"]) == pytest.approx((1e-4, 99))


def task():
    return Task(chain_net(), transforms=[augmentation()], samples=1)


def test_a_server_holds_psi_whatever_gradients_ask_for():
    state = Federation(Protocol(task(), settings(4, server_psi=SGDSettings(1.0))))
    low, high = state.task.psi_bounds
    for size, held in ((-1e15, high), (1e15, low)):
        with pytest.warns(RuntimeWarning, match=r"affine.range, .*logit: held at the bound"):
            step(state, size)
        assert torch.equal(state.psi, held)
        assert state.held() == list(state.psi_tensors())
    step(state, -0.5)
    assert state.held() == [] and torch.equal(state.psi, low + 0.5), "it comes back"


def test_where_psi_starts_beyond_a_bound_that_is_the_bound_and_what_names_none_has_none():
    wide = AffineAugmentation(initial={"shift_x": 3.0})
    state = Federation(Protocol(Task(chain_net(), transforms=[wide]), settings(4)))
    assert state.task.psi_bounds[1].max() == pytest.approx(2 * math.pi)
    assert state.task.psi_bounds[1][0] == 3 and state.held() == []
    module = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, CLASSES))
    free = Task(module, transforms=[AffineAugmentation("augerino")], hyperparameters=["1.bias"])
    assert all(bound.isinf().all() for bound in free.psi_bounds)


def test_a_bound_that_psi_starts_from_is_named_and_limits_make_sense():
    class Share(hyper.HyperModule):
        hyperparameters = ("share",)
        limits = {"share": (0.0, 1.0)}  # noqa: RUF012

        def __init__(self):
            super().__init__()
            self.share = nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return x * self.share

    federation = Federation(Protocol(Task(chain_net(), transforms={"share": Share()}), settings(4)))
    federation.psi += 1
    with pytest.warns(RuntimeWarning, match=r"^share.share: held"):
        federation._hold()
    for limits, said in (({"shares": (0, 1)}, "'shares', which is none"), ({"share": (1, 0)}, "the smaller")):
        Share.limits = limits
        with pytest.raises(ValueError, match=said):
            Federation(Protocol(Task(chain_net(), transforms={"share": Share()}), settings(4)))
    Share.limits = {"width": (0, 1)}
    with pytest.warns(RuntimeWarning, match="limits 'width', which is none .* nothing is held there"):
        Federation(Protocol(Task(chain_net(), transforms={"share": Share()}), settings(4)))
