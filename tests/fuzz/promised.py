"""Features that plain PyTorch handles and fedpart promises: networks of these must be trained, and equal."""

import functools

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from fuzz.pieces import WIDTH, Makers, adder, parameter, two_layers

PROMISED: Makers = {}
add = adder(PROMISED)


class Doubled(nn.Module):
    def forward(self, w):
        return torch.tanh(w) * 2


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        return g / 2


def tie(s):
    s.b.weight = s.a.weight


def in_turn(layers, x):
    for layer in layers:
        x = torch.tanh(layer(x))
    return x


def sets(**made):
    """A start that sets attributes, each made by a function."""

    def start(s):
        for name, make in made.items():
            setattr(s, name, make())

    return start


def linear():
    return nn.Linear(WIDTH, WIDTH)


add("layers")(two_layers)
add("tie in the registry", tie)(two_layers)
add("tie transposed in forward")(lambda s, x: F.linear(torch.tanh(s.a(x)), s.a.weight.t()))
add("layer twice")(lambda s, x: s.a(torch.tanh(s.a(x))))
add("layer by two names", lambda s: setattr(s, "c", s.a))(lambda s, x: s.c(torch.tanh(s.a(x))))
add("ModuleList", sets(l=lambda: nn.ModuleList([linear(), linear()])))(lambda s, x: in_turn(s.l, x))
add("ModuleDict", sets(l=lambda: nn.ModuleDict({"q": linear(), "r": nn.ModuleList([linear()])})))(
    lambda s, x: s.l["r"][0](torch.tanh(s.l["q"](x)))
)
add("ParameterList", sets(l=lambda: nn.ParameterList([parameter(WIDTH, WIDTH) for _ in range(2)])))(
    lambda s, x: torch.tanh(x @ s.l[0]) @ s.l[1]
)
add("ParameterDict", sets(l=lambda: nn.ParameterDict({"w": parameter(WIDTH, WIDTH)})))(
    lambda s, x: s.a(x) + x @ s.l["w"]
)
add("nested Sequential", sets(l=lambda: nn.Sequential(nn.Sequential(linear(), nn.ReLU()), linear())))(
    lambda s, x: s.l(x)
)
add("buffer", lambda s: s.register_buffer("c", torch.rand(WIDTH)))(lambda s, x: s.a(x) * s.c)
add("buffer not kept", lambda s: s.register_buffer("c", torch.rand(WIDTH), persistent=False))(
    lambda s, x: s.a(x) + s.c
)
add("tensor attribute", sets(c=lambda: torch.rand(WIDTH)))(lambda s, x: s.a(x) * s.c)
add("forward hook", lambda s: s.a.register_forward_hook(lambda m, i, o: o * 0.5))(two_layers)
add("forward pre-hook", lambda s: s.b.register_forward_pre_hook(lambda m, i: (i[0] + 0.1,)))(two_layers)
add("hook writes", lambda s: s.a.register_forward_hook(lambda m, i, o: o.mul_(0.5)))(two_layers)
add("hook of the module's weight", lambda s: s.a.register_forward_hook(lambda m, i, o: o + m.weight[0]))(
    two_layers
)


@add("gradient hook on activations")
def _(s, x):
    h = s.a(x)
    if h.requires_grad:
        h.register_hook(lambda g: g * 0.5)
    return s.b(h)


@add("in place on activations")
def _(s, x):
    h = s.a(x)
    h.mul_(0.5).add_(0.1).clamp_(-2, 2)
    h += x
    return s.b(h)


@add("in place by index")
def _(s, x):
    h = s.a(x).clone()
    h[:, 0] = 0
    h[:, 1:3] *= 2
    return s.b(h)


@add("in place through a view")
def _(s, x):
    h = s.a(x) * 1.0
    h.view(-1, 2, WIDTH // 2)[:, 1].mul_(0.3)
    return s.b(h)


@add("views")
def _(s, x):
    p, q = s.a(x).chunk(2, 1)
    return s.b(torch.cat([q, p], 1).t().contiguous().t())


@add("in place on data of activations")
def _(s, x):
    h = s.a(x)
    h.data.clamp_(-0.5, 0.5)
    return s.b(h)


@add("inputs of a layer changed in place")
def _(s, x):
    x.sub_(0.5).div_(0.8)
    return s.a(x)


add("inplace ReLU", sets(r=lambda: nn.ReLU(inplace=True)))(lambda s, x: s.b(s.r(s.a(x))))
add("weight norm", lambda s: parametrizations.weight_norm(s.a))(two_layers)
add("own parametrization", lambda s: parametrize.register_parametrization(s.a, "weight", Doubled()))(
    two_layers
)
add("frozen", lambda s: s.a.requires_grad_(False))(two_layers)
add("frozen bias", lambda s: s.a.bias.requires_grad_(False))(two_layers)
add("strided parameter", lambda s: setattr(s.a, "weight", nn.Parameter(s.a.weight.data.t())))(two_layers)
add("scalar parameter", sets(c=lambda: parameter()))(lambda s, x: s.a(x) * s.c)
add("bound method", lambda s: setattr(s, "f", s.a.forward))(lambda s, x: s.b(torch.tanh(s.f(x))))
add("partial of a function", sets(f=lambda: functools.partial(F.leaky_relu, negative_slope=0.2)))(
    lambda s, x: s.b(s.f(s.a(x)))
)
add("own autograd function")(lambda s, x: s.b(Halved.apply(s.a(x))))
add("detach in forward")(lambda s, x: s.a(x) + s.a(x).detach() * s.b.weight.detach()[0])
add("no_grad part")(lambda s, x: s.b(x) + _no_grad(s.a, x))
add("LayerNorm", sets(n=lambda: nn.LayerNorm(WIDTH)))(lambda s, x: s.n(s.a(x)))
add("GroupNorm", sets(n=lambda: nn.GroupNorm(2, WIDTH)))(lambda s, x: s.n(s.a(x)))
add("GRU", sets(n=lambda: nn.GRU(2, WIDTH, batch_first=True)))(lambda s, x: s.n(x.view(-1, 3, 2))[0][:, -1])
add("LSTM", sets(n=lambda: nn.LSTM(3, WIDTH, batch_first=True)))(lambda s, x: s.n(x.view(-1, 2, 3))[0][:, -1])
add("attention", sets(n=lambda: nn.MultiheadAttention(2, 1, batch_first=True)))(
    lambda s, x: s.a(s.n(*[x.view(-1, 3, 2)] * 3)[0].flatten(1))
)
add("Conv1d", sets(n=lambda: nn.Conv1d(1, 1, 3, padding=1)))(lambda s, x: s.n(x[:, None])[:, 0])
add("Embedding", sets(n=lambda: nn.Embedding(4, WIDTH)))(
    lambda s, x: s.a(x) + s.n((x[:, 0].detach() > 0).long())
)
add("train flag")(lambda s, x: s.a(x) * (0.9 if s.training else 1.0))
add("backward hook", lambda s: s.b.register_full_backward_hook(lambda m, i, o: (i[0] * 0.5,)))(two_layers)
add("unused branch")(lambda s, x: s.a(x) if len(x) else s.b(x))
add("activation kept, not read")(lambda s, x: (setattr(s, "last", s.a(x).detach()), s.b(s.last))[1] + s.a(x))


def _no_grad(layer, x):
    with torch.no_grad():
        return layer(x)


@add("cache of a constant", sets(mask=lambda: None))
def _(s, x):
    if s.mask is None:
        s.mask = torch.ones(WIDTH, WIDTH).tril()
    return s.a(x) @ s.mask


@add("gradient by the inputs")
def _(s, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(torch.tanh(s.a(x)).sum(), x, create_graph=True)
    return s.b(g)
