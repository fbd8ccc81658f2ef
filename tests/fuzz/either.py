"""Features that may be refused: networks of these are equal, or refused in one sentence."""

import collections
import functools
import itertools
import random
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import torch
from hooked import on_hidden
from torch import nn
from torch.nn import functional as F

from fuzz.pieces import WIDTH, Makers, adder, parameter, two_layers

EITHER: Makers = {}
add = adder(EITHER)


def puts(name, make):
    """A start that sets an attribute to what a function makes of the piece."""
    return lambda s: setattr(s, name, make(s))


# A. weights that are reached by another way
add("A closure over layers", puts("f", lambda s: lambda x: s.b(torch.tanh(s.a(x)))))(lambda s, x: s.f(x))
add("A closure and layer", puts("f", lambda s: lambda x: s.a(x)))(lambda s, x: s.b(s.f(x)))
add("A list of parameters", puts("all", lambda s: [s.a.weight]))(lambda s, x: s.b(x @ s.all[0]))
add("A dict of parameters", puts("all", lambda s: {"w": s.a.weight}))(lambda s, x: s.a(x @ s.all["w"]))
add("A namespace", puts("all", lambda s: SimpleNamespace(w=s.a.bias)))(lambda s, x: s.b(x) + s.all.w)
add("A view at the start", puts("wt", lambda s: s.a.weight.t()))(lambda s, x: F.linear(s.a(x), s.wt))
add("A slice at the start", puts("part", lambda s: s.a.bias[:1]))(lambda s, x: s.b(x) + s.part)
add("A partial", puts("f", lambda s: functools.partial(F.linear, weight=s.a.weight)))(
    lambda s, x: s.b(torch.tanh(s.f(x)))
)
add("A hook's closure", lambda s: s.a.register_forward_hook(lambda m, i, o: o + s.b.bias))(
    lambda s, x: s.a(x) + s.b.weight[0]
)
add("A layer in a list", puts("all", lambda s: [s.a, s.b]))(lambda s, x: s.all[1](torch.tanh(s.all[0](x))))
add("A unregistered layer", puts("all", lambda s: [nn.Linear(WIDTH, WIDTH)]))(lambda s, x: s.b(s.all[0](x)))
add("A unregistered parameter", puts("all", lambda s: [parameter(WIDTH)]))(lambda s, x: s.b(x) + s.all[0])
add("A detached alias", puts("w", lambda s: s.a.weight.detach()))(lambda s, x: s.a(x) @ s.w)
add("A data alias in a list", puts("w", lambda s: [s.a.weight.data]))(lambda s, x: s.a(x) @ s.w[0])
add("A buffer alias", lambda s: s.register_buffer("w", s.a.weight.detach()))(lambda s, x: s.a(x) @ s.w)
add("A numpy alias", puts("w", lambda s: s.a.bias.detach().numpy()))(
    lambda s, x: s.a(x) * torch.as_tensor(s.w).clone()
)
add("tie by data", lambda s: setattr(s.b.weight, "data", s.a.weight.data))(two_layers)
add("tie by Parameter(data)", lambda s: setattr(s.b, "weight", nn.Parameter(s.a.weight.data)))(two_layers)
add("tie by a slice of data", lambda s: setattr(s.b, "bias", nn.Parameter(s.a.weight.data[0])))(two_layers)


# C. weights that forward sets
def changing(change, then=two_layers):
    """A forward that changes something of the piece, and computes then."""
    return lambda s, x: (change(s, x), then(s, x))[1]


def shrink(array):
    array *= 0.9


def sets_data(of, value):
    """Gives a parameter other data: both are functions of the piece."""
    return changing(lambda s, x: setattr(of(s), "data", value(s)))


in_silence = torch.no_grad()
clamped = in_silence(lambda s: s.a.weight.clamp(-0.2, 0.2))
weight = attrgetter("a.weight")
add("C data = renorm")(sets_data(weight, lambda s: torch.renorm(s.a.weight.data, 2, 0, 0.5)))
add("C data = of the bias")(sets_data(attrgetter("b.bias"), lambda s: s.b.bias.data.clamp(-0.05, 0.05)))
add("C in place under no_grad")(
    changing(in_silence(lambda s, x: s.a.weight.div_(s.a.weight.norm().clamp(min=1))))
)
add("C in place on data")(changing(lambda s, x: s.a.weight.data.clamp_(-0.2, 0.2)))
add("C set_")(changing(in_silence(lambda s, x: s.a.weight.set_(clamped(s)))))
add("C through numpy")(changing(lambda s, x: shrink(s.a.weight.detach().numpy())))
add("C new parameter")(changing(lambda s, x: setattr(s.a, "weight", nn.Parameter(clamped(s)))))
add("frozen changed in place", lambda s: s.a.requires_grad_(False))(
    changing(lambda s, x: s.a.weight.mul_(0.9))
)
add("frozen data =", lambda s: s.a.requires_grad_(False))(sets_data(weight, lambda s: s.a.weight.data * 0.9))
add("buffer changed through numpy", lambda s: s.register_buffer("c", torch.ones(WIDTH)))(
    changing(lambda s, x: shrink(s.c.numpy()), lambda s, x: s.a(x) * s.c)
)
add("buffer changed by data", lambda s: s.register_buffer("c", torch.ones(WIDTH)))(
    changing(lambda s, x: setattr(s.c, "data", s.c.data * 0.9), lambda s, x: s.a(x) * s.c)
)

# D. state
zeros = puts("h", lambda s: torch.zeros(WIDTH))
add("D attribute", zeros)(
    changing(lambda s, x: setattr(s, "h", 0.5 * s.h + s.a(x).mean(0).detach()), lambda s, x: s.a(x) + s.h)
)
add("D tensor in place", zeros)(changing(lambda s, x: s.h.add_(1), lambda s, x: s.a(x) * s.h))
add("D tensor in a dict", puts("h", lambda s: {"mean": torch.zeros(WIDTH)}))(
    changing(lambda s, x: s.h["mean"].add_(0.1), lambda s, x: s.a(x) + s.h["mean"])
)
counts = changing(lambda s, x: setattr(s, "n", s.n + 1), lambda s, x: s.a(x) / s.n)
add("D counter", puts("n", lambda s: 0))(counts)
grows = changing(lambda s, x: s.seen.append(1), lambda s, x: s.a(x) / len(s.seen))
add("D list that grows", puts("seen", lambda s: []))(grows)
last = changing(lambda s, x: s.seen.append(s.seen[-1] * 0.9), lambda s, x: s.a(x) * s.seen[-1])
add("D deque", puts("seen", lambda s: collections.deque([1.0], maxlen=3)))(last)
shrinks = changing(lambda s, x: shrink(s.h), lambda s, x: s.a(x) * float(s.h[0]))
add("D numpy array", puts("h", lambda s: np.ones(1)))(shrinks)
scales = changing(lambda s, x: setattr(s.h, "scale", s.h.scale * 0.9), lambda s, x: s.a(x) * s.h.scale)
add("D object", puts("h", lambda s: SimpleNamespace(scale=1.0)))(scales)


def _counting():
    calls = []
    return lambda m, i, o: (calls.append(1), o / len(calls))[1]


add("D state of a hook's closure", lambda s: s.a.register_forward_hook(_counting()))(two_layers)
add("D NumPy generator", puts("g", lambda s: np.random.default_rng(0)))(lambda s, x: s.a(x) * s.g.random())
add("D RandomState", puts("g", lambda s: np.random.RandomState(0)))(lambda s, x: s.a(x) * s.g.rand())
add("D Random", puts("g", lambda s: random.Random(0)))(lambda s, x: s.a(x) * s.g.random())
add("D iterator", puts("g", lambda s: itertools.count(1)))(lambda s, x: s.a(x) / next(s.g))
add("harmless counter", puts("n", lambda s: 0))(lambda s, x: (setattr(s, "n", s.n + 1), s.a(x))[1])
add("harmless log", puts("n", lambda s: []))(lambda s, x: (s.n.append(len(x)), s.a(x))[1])
add("toggles requires_grad")(changing(lambda s, x: s.a.weight.requires_grad_(False)))
add("leaf of its own")(lambda s, x: s.a(x) + torch.zeros(WIDTH, requires_grad=True))


# later passes, and the backward pass
class Late:
    """Does something from the third pass on, and counts where nobody looks."""

    def __init__(self, act):
        self.act, self.calls = act, itertools.count()

    def __call__(self, s, x):
        if next(self.calls) > 1:
            self.act(s, x)


hooks = functools.partial(on_hidden, between=torch.tanh)


class Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, counts):
        ctx.counts = counts
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / next(ctx.counts), None


drifted = changing(lambda s, x: s.b.weight.norm() > s.norm and s.a.weight.data.mul_(0.9))
in_numpy = changing(lambda s, x: s.b.weight.norm() > s.norm and shrink(s.a.bias.detach().numpy()))
add("late data", puts("norm", lambda s: s.b.weight.norm().item()))(drifted)
add("late numpy", puts("norm", lambda s: s.b.weight.norm().item()))(in_numpy)
add("late write", puts("late", lambda s: Late(lambda s, x: x.data.mul_(0.9))))(
    changing(lambda s, x: s.late(s, x))
)
add("late state", puts("n", lambda s: [0]))(
    changing(lambda s, x: s.n.append(s.n.pop() + 1), lambda s, x: s.a(x) * (2 if s.n[0] > 4 else 1))
)
add("late tensor", zeros)(
    changing(lambda s, x: setattr(s, "h", s.h + 1), lambda s, x: s.a(x) * (2 if s.h[0] > 4 else 1))
)
add("gradient clipped")(hooks(lambda s, gradient: gradient.clamp(-0.01, 0.01)))
add("gradient with noise")(hooks(lambda s, gradient: gradient + torch.rand_like(gradient)))
add("gradient with noise of NumPy")(hooks(lambda s, gradient: gradient * np.random.rand()))
add("gradient counted", puts("n", lambda s: [0]))(hooks(lambda s, g: (s.n.append(1), g / len(s.n))[1]))
add("gradient that writes")(hooks(lambda s, gradient: s.b.weight.data.mul_(0.9)[:0].sum().item() or None))
add("own backward that counts", puts("n", lambda s: itertools.count(1)))(
    lambda s, x: s.b(Divided.apply(s.a(x), s.n))
)

INPUTS: Makers = {}  # B. these come first: they change what the caller handed over
first = adder(INPUTS)
first("B sub_")(lambda s, x: s.a(x.sub_(0.5).div_(0.8)))
first("B view")(lambda s, x: (x[:, 1:3].mul_(0.5), s.a(x))[1])
first("B data")(lambda s, x: (x.data.add_(0.3), s.a(x))[1])
first("B numpy")(lambda s, x: (np.add(x.numpy(), 0.3, out=x.numpy()), s.a(x))[1])
first("B detached")(lambda s, x: (x.detach().view(-1)[::2].mul_(0.5), s.a(x))[1])
first("B relu_")(lambda s, x: s.a(F.relu(x, inplace=True).sub_(0.2)))
first("B set_")(lambda s, x: (x.set_(x * 0.5), s.a(x))[1])
first("B hook", lambda s: s.a.register_forward_pre_hook(lambda m, i: (i[0].add_(0.4),)))(lambda s, x: s.a(x))
