"""Networks as other people have them: each execution trains what a plain loop does, or says what is wrong."""

from functools import partial

import pytest
import refusals
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import ClientError, Task, federate
from fedpart.checks import NetworkError
from fedpart.engines.grouped import GroupedRunner

PLAIN = {"method": "fedavg", "local": {"learning_rate": 0.5}, "server": {"name": "sgd", "learning_rate": 1.0}}


class Of(nn.Module):
    """A layer before a head, and a forward of one's own."""

    def __init__(self, first, forward, **kept):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.call = first, nn.Linear(4, 3), forward
        vars(self).update(kept)

    def forward(self, x):
        return self.call(self, x)


def texts(**options):
    return Of(nn.Embedding(9, 4, **options), lambda s, x: s.head(s.first(x).mean(1)))


def clients(sizes, tokens=False):
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randint(9, (n, 6), generator=g) if tokens else torch.randn(n, 4, generator=g),
         torch.randint(3, (n,), generator=g))
        for n in sizes
    ]  # fmt: skip


def trained(net, data, execution="loop", rounds=3, **changes):
    return federate(net, data, rounds=rounds, cohort=len(data), execution=execution, **PLAIN | changes)


@pytest.mark.parametrize("execution", ["loop", "fused", "grouped"])
@pytest.mark.parametrize("padding", [0, -2])
def test_a_row_of_padding_is_not_trained(execution, padding):
    net, data = texts(padding_idx=padding), clients([4, 4, 4], tokens=True)
    before, after = net.first.weight.detach(), trained(net, data, execution).module().first.weight
    torch.testing.assert_close(after, trained(net, data).module().first.weight)
    moved = (after != before).any(1)
    assert not moved[padding] and moved.sum() == len(before) - 1


def seeded(net, x):
    return net.head(x * torch.rand(4, generator=torch.Generator().manual_seed(0)))


def test_what_clients_that_are_computed_together_would_change_is_refused():
    """Whoever of them it is: the first in a stack, and the largest, are as they are alone."""
    centred = Of(nn.Identity(), lambda s, x: s.head(x - x.mean(0)))
    constant, often = Of(nn.Identity(), seeded), texts(scale_grad_by_freq=True)
    cannot = "Round 1: These clients cannot be computed together .*other changes"
    counted = "Gradients of an embedding go by how often .*; use execution: loop"
    rows = [
        ("a mean over examples", centred, [6, 6, 4], "grouped", ClientError, cannot),
        ("of the first", centred, [4, 6, 6], "grouped", ClientError, cannot),
        ("a constant from a seed", constant, [4, 4, 4], "grouped", ClientError, cannot),
        ("how often tokens are there", often, [4, 4], "fused", ValueError, counted),
        ("the same, padded", often, [6, 3], "grouped", ClientError, cannot),
    ]
    refusals.check(
        (what, partial(trained, net, clients(sizes, net is often), execution), error, says)
        for what, net, sizes, execution, error, says in rows
    )


def hooked(hook_of):
    net = Of(nn.Linear(4, 4), lambda s, x: s.head(s.first(x)))
    net.first.register_forward_hook(hook_of(net))
    return net


def closing(make):
    """With a function that is made of the network itself, as in ``__init__``."""
    net = Of(nn.Linear(4, 4), lambda s, x: s.head(s.act(s.first(x))), scale=2.0)
    net.drop = nn.Dropout(0.5)
    net.act = make(net)
    return net


def test_dropout_that_another_networks_mode_switches_is_refused():
    rows = [
        ("training", closing(lambda net: lambda h: F.dropout(h, 0.5, net.training)), "'net'"),
        ("a layer of it", closing(lambda net: lambda h: net.drop(h)), "'net'"),
        ("the layer", closing(lambda net: (lambda drop: lambda h: drop(h))(net.drop)), "'drop'"),
        ("a hook", hooked(lambda net: lambda _, x, out: F.dropout(out, 0.5, net.training)), "'net'"),
    ]
    says = "asks {} whether to drop, which is of the network that was given .* make it a method"
    refusals.check(
        (what, partial(trained, net, clients([4, 4])), NetworkError, says.format(name))
        for what, net, name in rows
    )
    asks_its_layer = hooked(lambda net: lambda layer, x, out: F.dropout(out, 0.5, layer.training))
    keeps = hooked(lambda net: lambda _, x, out: setattr(net, "seen", out.detach()))
    keeps.drop = nn.Dropout(0.5)
    for net in (closing(lambda net: lambda h: h * net.scale), asks_its_layer, Wrapped(wrapped), keeps):
        result, (x, _) = trained(net, clients([4, 4])), clients([5])[0]
        torch.testing.assert_close(result.predict(x), result.module()(x))


class Wrapped(nn.Module):
    """Has a layer in an attribute that is named like a global one, which it does not use."""

    def __init__(self, layer):
        super().__init__()
        self.wrapped = layer

    def forward(self, x):
        return F.dropout(self.wrapped(x), 0.1, self.training)


wrapped = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))


class Switching(nn.Module):
    """Modes of its own, one of which returns nothing."""

    def __init__(self):
        super().__init__()
        self.head, self.times = nn.Linear(4, 3), 1.0

    def train(self, mode=True):
        super().train(mode)
        self.times = 1.0

    def eval(self):
        super().eval()
        self.times = 5.0

    def forward(self, x):
        return self.head(x) * self.times


def test_modes_of_a_networks_own_are_those_of_training_and_of_prediction():
    result, (x, _) = trained(Switching(), clients([4, 4])), clients([5])[0]
    module = result.module()
    assert module.times == 5.0 and not module.training
    torch.testing.assert_close(result.predict(x), module(x))


def test_digits_that_are_lost_are_told():
    double = nn.Sequential(nn.Linear(4, 3).double())
    (note,) = Task(double).notes
    assert note == "float64 becomes float32: '0.weight' and 1 more; with precision fp64 no digit is lost."
    assert Task(double, precision="fp64").notes == Task(nn.Linear(4, 3)).notes == []


def test_shapes_that_do_not_fit_have_a_sentence():
    def squares(outputs, targets):
        return (outputs - targets) ** 2

    wide, (x, _) = clients([4, 4]), clients([6])[0]
    numbers = Task(nn.Linear(4, 1), samples=1, likelihood=squares)
    broadcast = r"outputs \[B, 1\] make \[B, B\], compute with outputs\[:, 0\]"
    refusals.check(
        [
            (
                "too narrow",
                partial(trained, nn.Linear(3, 3), wide),
                ClientError,
                "^Client 0 failed in round 1",
            ),
            ("broadcast", partial(trained, numbers, [(x, x.sum(1))] * 2), NetworkError, broadcast),
        ]
    )


def test_a_difference_that_the_servers_weights_do_not_hold_is_rounding(monkeypatch):
    """As where a client's only example is fit: what is left of its gradient is the rounding of p - 1."""
    alone = GroupedRunner._alone

    def rounded(runner, round, member):
        update = alone(runner, round, member)
        update.parts[1] += torch.finfo(torch.float32).eps * round.w.norm() / 8
        return update

    monkeypatch.setattr(GroupedRunner, "_alone", rounded)
    trained(nn.Linear(4, 3), clients([4, 4, 1]), "grouped", local={"learning_rate": 1e-12})
