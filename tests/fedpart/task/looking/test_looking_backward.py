"""What hooks and a backward() of one's own do in the backward pass, and states that act after many passes."""

import contextvars
import itertools
import os
import random
import threading

import numpy as np
import pytest
import refusals
import torch
from hooked import on_hidden
from looked import CHANGES, DRAWS, LOST, REFUSED, Net, assert_as_in_pytorch, check, data, ours, plainly
from torch import nn
from torch.nn import functional as F

import fedpart

RNG = np.random.default_rng(0)
COUNTER = itertools.count()
COUNTS = {"n": 0}
LOCAL = threading.local()
LOCAL.n = 0
CONTEXT = contextvars.ContextVar("n", default=0)
BACKWARD, BEFORE = "register_full_backward_hook", "register_full_backward_pre_hook"
WEIGHT = LOST.format("b.weight")


def hooked(register, hook):
    net = Net(plainly)
    getattr(net.b, register)(hook)
    return net


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()


class Noisy(Function):
    @staticmethod
    def backward(ctx, gradient):
        return gradient + 0.1 * torch.randn_like(gradient)


class Counted(Function):
    n = 0

    @staticmethod
    def backward(ctx, gradient):
        Counted.n += 1
        return gradient / Counted.n


class Straight(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def count(gradient):
    COUNTS["n"] += 1
    return gradient / COUNTS["n"]


def written(net, gradient):
    with torch.no_grad():
        net.b.weight.mul_(0.5)


def test_backward_passes_that_draw_count_or_write_are_refused():
    rows = [
        (Net(on_hidden(lambda _, g: g * torch.rand(()))), DRAWS),
        (Net(on_hidden(lambda _, g: g * fedpart.uniform((), like=g))), DRAWS),
        (Net(on_hidden(lambda _, g: g * np.random.rand())), DRAWS),
        (Net(on_hidden(lambda _, g: g * random.random())), "draws from Python's random module"),
        (Net(on_hidden(lambda _, g: g * RNG.random())), "'RNG' .* draws from a generator of its own"),
        (Net(on_hidden(lambda _, g: count(g))), f"'COUNTS' .* {CHANGES}"),
        (Net(on_hidden(written)), WEIGHT),
        (Net(on_hidden(lambda s, g: g * s.b.weight.data.mul_(0.5).isfinite().all())), WEIGHT),
        (Net(lambda s, x: s.b(Noisy.apply(s.a(x)))), DRAWS),
        (Net(lambda s, x: s.b(Counted.apply(s.a(x)))), f"'n' .* {CHANGES}"),
        (hooked(BACKWARD, lambda _, g, __: (g[0] * torch.rand(()),)), DRAWS),
        (hooked(BACKWARD, lambda _, g, __: (count(g[0]),)), f"'COUNTS' .* {CHANGES}"),
        (hooked(BACKWARD, lambda s, *_: s.weight.data.mul_(0.9)[:0].sum().item() or None), WEIGHT),
        (hooked(BEFORE, lambda _, g: (g[0] * torch.rand(()),)), DRAWS),
    ]
    check(rows)


def test_losses_that_act_in_the_backward_pass():
    def loss(outputs, targets):
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: gradient * torch.rand(()))
        return F.cross_entropy(outputs, targets, reduction="none")

    task = fedpart.Task(nn.Linear(6, 3), likelihood=loss)
    shards = [*zip(*data(), strict=True)]
    run = lambda: fedpart.federate(task, shards, rounds=1, chunks=(1.0,), method="fedavg")  # noqa: E731
    refusals.check([("loss", run, REFUSED, DRAWS)])


def seen(layer, gradients, _):
    layer.seen = gradients[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(on_hidden(lambda _, gradient: gradient.clamp(-0.01, 0.01))),
        lambda: Net(lambda s, x: s.b(Straight.apply(s.a(x)))),
        lambda: hooked(BACKWARD, lambda _, gradients, __: (gradients[0] * 0.5,)),
        lambda: hooked(BEFORE, lambda _, gradients: (gradients[0] * 0.5,)),
        lambda: hooked(BACKWARD, seen),
    ],
)
def test_backward_passes_that_change_gradients_alone_are_those_of_pytorch(make):
    assert_as_in_pytorch(make)


def after_many(counted):
    """A forward that doubles its outputs when it has counted to 40, as no first pass does."""
    return lambda s, x: s.b(x) * (2.0 if counted(s) > 40 else 1.0)


def in_a_part(_):
    COUNTS["n"] += 1
    return COUNTS["n"]


def in_a_function(_):
    in_a_function.n += 1
    return in_a_function.n


in_a_function.n = 0


def in_a_thread(_):
    LOCAL.n += 1
    return LOCAL.n


def in_the_environment(_):
    os.environ["FEDPART_COUNTS"] = str(int(os.environ.get("FEDPART_COUNTS", "0")) + 1)
    return int(os.environ["FEDPART_COUNTS"])


def in_a_context(_):
    CONTEXT.set(CONTEXT.get() + 1)
    return CONTEXT.get()


def in_a_tensor(net):
    net.t = net.t + 1
    return net.t


def in_a_list(net):
    net.q.append(1)
    return len(net.q)


def in_a_dict(net):
    net.d[len(net.d)] = 1
    return len(net.d)


def every_seventh(net, x):
    net.t = net.t + 1
    return net.b(x) * (2.0 if net.t % 7 == 0 else 1.0)


class Helped(Net):
    def forward(self, x):
        return self.b(x) * (2.0 if self._counted() > 40 else 1.0)

    def _counted(self):
        return in_a_part(None)


def test_counts_that_act_after_many_passes_are_refused():
    iterator = "is an iterator, which would carry .*; hold a list"
    rows = [
        (Net(after_many(lambda _: next(COUNTER))), f"'COUNTER' .* {iterator}"),
        (Net(after_many(lambda s: next(s.i)), i=lambda _: itertools.count()), f"'i' .* {iterator}"),
        (Net(after_many(in_a_part)), f"'COUNTS' .* {CHANGES}"),
        (Net(after_many(in_a_function)), f"'call' .* {CHANGES}"),
        (Net(after_many(in_a_thread)), f"'LOCAL' .* {CHANGES}"),
        (Net(after_many(in_the_environment)), f"'environ' .* {CHANGES}"),
        (Net(after_many(in_a_context)), f"'CONTEXT' .* {CHANGES}"),
        (Net(after_many(in_a_tensor), t=torch.tensor(0)), f"'t' .* {CHANGES}"),
        (Net(after_many(in_a_list), q=lambda _: []), f"'q' .* {CHANGES}"),
        (Net(after_many(in_a_dict), d=lambda _: {}), f"'d' .* {CHANGES}"),
        (Net(every_seventh, t=torch.tensor(0)), f"'t' .* {CHANGES}"),
        (Helped(None), f"'COUNTS' .* {CHANGES}"),
    ]
    check(rows)
    del os.environ["FEDPART_COUNTS"]


def test_a_generator_that_few_passes_draw_from_is_refused_and_one_without_a_name_kept():
    def sometimes(net, x):
        return net.b(x * net.rng.random() if torch.rand(()) < 1e-9 else x)

    net = Net(sometimes, rng=lambda _: np.random.default_rng(0))
    check([(net, "'rng' .* draws from a generator of its own")])
    net = Net(lambda s, x: s.b(x), rng=lambda _: np.random.default_rng(0), i=lambda _: itertools.count())
    assert torch.equal(ours(net)["b.weight"], ours(Net(lambda s, x: s.b(x)))["b.weight"])
