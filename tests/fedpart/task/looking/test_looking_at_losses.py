"""A loss of one's own is part of the pass: what it keeps, draws, reaches and writes to is looked at too."""

import random
from collections import UserList
from functools import partial

import numpy as np
import pytest
import refusals
import torch
from looked import REFUSED, Buffered, Net
from torch import nn
from torch.nn import functional as F

import fedpart
from fedpart.nn.likelihoods import Likelihood

RNG, COUNTS, WEIGHT = np.random.default_rng(0), {"n": 0}, nn.Parameter(torch.ones(3))


def data():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(12, 6, generator=generator), torch.arange(12) % 3


def nll(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def counts(outputs, targets):
    COUNTS["n"] += 1
    return nll(outputs, targets) / COUNTS["n"]


def clamps(outputs, targets):
    return nll(outputs, targets.clamp_(0, 1))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, outputs, targets):
        return nll(outputs * self.scale, targets)


class Counting(Likelihood):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, outputs, targets):
        self.n += 1
        return nll(outputs, targets) / self.n


def ours(loss, shards=None, execution="loop", **more):
    torch.manual_seed(0)
    task = fedpart.Task(nn.Linear(6, 3), likelihood=loss, samples=1)
    local = fedpart.LocalSettings(0.5, 64)
    options = {"rounds": 3, "chunks": (1.0,), "method": "fedavg", "local": local, "execution": execution}
    return fedpart.federate(task, shards or [data()] * 2, **{**options, **more})


def test_what_a_loss_may_not_do():
    kept, generator = "is changed in forward", "draws from a generator of its own"
    rows = [
        (lambda o, t: nll(o, t) * RNG.random(), f"'RNG' of OwnLikelihood at 'likelihood' {generator}"),
        (lambda o, t: nll(o, t) * random.random(), "draws from Python's random module"),
        (lambda o, t: nll(o, t) * np.random.rand(), "draws from NumPy's global generator"),
        (counts, f"'COUNTS' of OwnLikelihood .* {kept}"),
        (Counting(), f"'n' of Counting at 'likelihood' {kept}"),
        (Scaled(), "The loss has a weight 'scale' of its own, which nobody would train; leave it out"),
        (lambda o, t: nll(o * WEIGHT, t), r"reaches a weight \[3\] that is no parameter"),
        (lambda o, t: nll(o, t) * np.random.default_rng().random(), "returns other numbers"),
    ]
    refusals.check((says, partial(ours, loss), REFUSED, says) for loss, says in rows)


def test_draws_of_a_loss_follow_from_the_seed():
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # the process's own generator, which elsewhere stands elsewhere
        state = torch.get_rng_state()
        results.append(ours(lambda o, t: nll(F.dropout(o, 0.5), t) * torch.rand(()), seed=5))
        torch.set_rng_state(state)
    first, second = (result.module().weight for result in results)
    assert torch.equal(first, second)


def test_targets_that_a_loss_writes_to_stay_as_they_are():
    expected = ours(lambda o, t: nll(o, t.clamp(0, 1)), validation=data(), evaluate_every=1)
    for execution in ("loop", "fused", "grouped"):
        shards, held_out = [data() for _ in range(2)], data()
        written = ours(clamps, shards, execution, validation=held_out, evaluate_every=1)
        assert all(torch.equal(targets, torch.arange(12) % 3) for _, targets in (*shards, held_out))
        torch.testing.assert_close(written.module().weight, expected.module().weight)
        assert [m.val_nll for m in written.metrics] == pytest.approx([m.val_nll for m in expected.metrics])


def renormed(net, x):
    net.b.weight.data = net.b.weight.data / 2
    return net.b(x)


def counted(net, x):
    net.buffer += 1
    return net.b(x)


def kept(net, x):
    net.h = getattr(net, "h", 0) + net.b(x).detach().mean()
    return net.b(x) + net.h


def hooked():
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    net[1].register_full_backward_hook(lambda layer, before, after: (before[0] * torch.rand(()),))
    return net


AT_FAULT = {
    "forward() changes": lambda: Net(renormed),
    "forward() reaches": lambda: Net(lambda s, x: s.b(x) * s.kept[0].sum(), kept=lambda s: [s.w]),
    "Buffered at 'the top level' changes its buffer": lambda: Buffered(counted),
    "'h' of Net": lambda: Net(kept),
    "The network returns outputs": lambda: Net(lambda net, x: net.b(x).sum(0)),
    "The network returns a dict in which": lambda: Net(lambda net, x: {}),
    "Net at 'the top level' draws": lambda: Net(lambda net, x: net.b(x) * random.random()),
    "A hook, or a backward": hooked,
    "The likelihood returned shape ()": lambda: one_sample(F.cross_entropy),
    "The likelihood returned shape (12, 3)": lambda: one_sample(lambda o, t: (o - F.one_hot(t, 3)) ** 2),
}


def one_sample(likelihood):
    return fedpart.Task(nn.Linear(6, 3), likelihood=likelihood, samples=1)


@pytest.mark.parametrize("says", AT_FAULT)
def test_what_a_network_does_is_not_laid_to_the_data(says):
    """However clients are computed, the message names what the network does, and not a client's data."""
    for way in ({"validation": data()}, {"execution": "fused"}, {"shards": UserList([data()] * 3)}):
        with pytest.raises(Exception) as raised:
            fedpart.federate(AT_FAULT[says](), **{"shards": [data()] * 3, "rounds": 1, **way}, chunks=(1.0,))
        told = str(raised.value)
        assert "do not fit" not in told and "data of" not in told, told
        assert says in told or says.replace("(12, 3)", "(1, 3)") in told, told


def test_a_loss_that_takes_a_mean_is_told_how_not_to():
    says = r'returns one number for all examples; write .*likelihood=nn.\w+\(reduction="none"\)'
    rows = [
        (f"{kind.__name__} {how}", partial(one_sample, kind(reduction=how)), f"^nn.{kind.__name__}.*{says}")
        for kind in (nn.CrossEntropyLoss, nn.NLLLoss, nn.MSELoss, nn.HuberLoss)
        for how in ("mean", "sum")
    ]
    for what, loss in (("a function", F.cross_entropy), ("a lambda", lambda o, t: nll(o, t).mean())):
        call = partial(fedpart.federate, one_sample(loss), [data()] * 3, rounds=1)
        rows.append((what, call, '^The likelihood returned shape .*reduction="none"'))
    refusals.check(rows)
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    named, own = (
        fedpart.federate(fedpart.Task(net, likelihood=loss, samples=1), [data()] * 3, rounds=1, seed=1)
        for loss in ("classification", nn.CrossEntropyLoss(reduction="none"))
    )
    assert torch.equal(named.state.w, own.state.w)
