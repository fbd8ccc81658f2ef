"""States, caches, writes and weights in places where few would look for them."""

import collections
import contextlib
import ctypes
import functools
import queue
import weakref

import numpy as np
import pytest
import torch
from hooked import on_hidden
from looked import CHANGES, DRAWS, Buffered, Net, assert_as_in_pytorch, check, plainly
from test_looking_backward import Counted, after_many
from torch import nn

QUEUE, NUMBER, OBJECTS = queue.Queue(), ctypes.c_int(0), np.array([0, None], dtype=object)
QUEUE.put(0)
applied = Counted.apply


class Large(Net):
    def __init__(self, forward, **kept):
        super().__init__(forward, **kept)
        self.many = nn.ModuleList(nn.Identity() for _ in range(1100))


def counts(net, x):
    net.n += 1
    return net.b(x) / net.n


class Transposed(Net):
    def __init__(self):
        super().__init__(None)

    @functools.cached_property
    def transposed(self):
        return self.a.weight.t()

    def forward(self, x):
        return self.b(x @ self.transposed)


def made_once(make):
    """A forward that makes something of its weights in the first pass."""

    def forward(net, x):
        if net.c is None:
            net.c = make(net)
        return net.b(x) * torch.as_tensor(net.c).mean()

    return forward


@functools.lru_cache
def norm_of(layer):
    return layer.weight.detach().norm()


@functools.lru_cache
def mask(size):
    return torch.arange(float(size))


def adds(name):
    def forward(net, x):
        torch._foreach_add_([getattr(net, name)], [torch.ones(3)])
        return net.b(x) * getattr(net, name)

    return forward


def reaching(kind):
    """A network whose forward reaches the caller's weights, without a gradient."""
    net = Net(lambda s, x: s.a(s.get(x)[:, :1].expand(-1, 6)) @ s.w)
    layer, alias = net.b, net.w.detach()
    net.get = {
        "layer": lambda x: layer(x).detach(),
        "alias": lambda x: x @ alias,
        "number": lambda x: x[:, :3] * net.b.weight.norm().item(),
        "reference": (lambda found: lambda x: found()(x).detach())(weakref.ref(layer)),
    }[kind]
    return net


def hooks_once(net, x):
    if not net.done:
        net.done = True
        net.b.weight.register_hook(lambda gradient: gradient * 0.1)
    return net.b(x)


def goes_backward(net, x):
    if net.b.weight.requires_grad:
        net.b(x).square().mean().backward()
    return net.b(x)


def late(act, kind=Net, **kept):
    """A network that acts when its weights have moved."""

    def forward(net, x):
        y = net.b(x)
        if abs(net.b.weight.detach().norm() - net.start) > 0.02:
            return act(net, x, y)
        return y

    net = kind(forward, **kept)
    net.start = float(net.b.weight.detach().norm())
    return net


def changes_a_buffer(net, x, y):
    net.buffer.add_(1)
    return y * net.buffer


def keeps_once(net, x, y):
    if net.c is None:
        net.c = x.std()
    return y / net.c


def hooks(net, x, y):
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * torch.rand(()))
    return y


def in_a_set(net):
    number = net.q.pop() + 1
    net.q.add(number)
    return number


def in_many(net):
    net.q[1][0] += 1
    return net.q[1][0]


def in_a_queue(_):
    number = QUEUE.get() + 1
    QUEUE.put(number)
    return number


def in_a_number_of_c(_):
    NUMBER.value += 1
    return NUMBER.value


def in_objects(_):
    OBJECTS[0] += 1
    return OBJECTS[0]


@torch.library.custom_op("fedpart_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


noisy.register_autograd(lambda ctx, gradient: gradient + 0.1 * torch.randn_like(gradient))


def unpacks_noise(net, x):
    pack, unpack = (lambda tensor: tensor), (lambda tensor: tensor * torch.rand(()))
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return plainly(net, x)


def turns(net, x):
    net.n = 1 - net.n
    return plainly(net, x) * (1.0 + net.n)


def swaps(net, x):
    net.q.reverse()
    return plainly(net, x) * net.q[0]


def orders(net, x):
    net.o.move_to_end(next(iter(net.o)))
    return plainly(net, x) * next(iter(net.o.values()))


def layered(change, layers):
    net = Net(lambda s, x: (change(s), s.b(s.layers[0](s.a(x))) / len(s.layers))[1])
    net.layers = layers
    return net


def moves_on(net):
    net.layers.insert(0, net.layers[2])
    del net.layers[3]


def freezes(net, x, y):
    net.a.requires_grad_(False)
    return y


ANOTHER = "forward\\(\\) reaches the weight '.*' by another way than as a parameter"
HOOK = "puts a hook on the weight 'b.weight', which is lost after the pass"


@pytest.mark.slow
def test_what_few_would_look_for():
    rows = [
        (Large(counts, n=0), f"'n' .* {CHANGES}"),
        (Large(lambda s, x: s.b(x) * s.r.random(), r=lambda _: np.random.default_rng(0)), "'r' .* draws"),
        (Transposed(), f"'transposed' .* {CHANGES}"),
        (Net(made_once(lambda s: s.a.weight.abs().max().item()), c=None), f"'c' .* {CHANGES}"),
        (Net(lambda s, x: s.b(x @ s.c.setdefault("w", s.a.weight)), c=lambda _: {}), f"'c' .* {CHANGES}"),
        (Net(lambda s, x: s.b(x) / norm_of(s.a)), r"depends on weights or inputs in the cache of norm_of"),
        (Buffered(adds("buffer")), "forward\\(\\) changes 'buffer'"),
        (Net(adds("t"), t=torch.ones(3)), "returns other numbers"),
        *((reaching(kind), ANOTHER) for kind in ("layer", "alias", "number", "reference")),
        (Net(hooks_once, done=False), HOOK),
        (Net(goes_backward), "calls backward\\(\\), whose gradients would be lost; return"),
        (late(changes_a_buffer, Buffered), "forward\\(\\) changes 'buffer'"),
        (late(keeps_once, c=None), f"'c' .* {CHANGES}"),
        (late(hooks), DRAWS),
        (Net(after_many(in_a_set), q=lambda _: {0}), f"'q' .* {CHANGES}"),
        (Net(after_many(in_many), q=lambda _: [[0] for _ in range(2000)]), f"'q' .* {CHANGES}"),
        (Net(after_many(in_a_queue)), f"'QUEUE' .* {CHANGES}"),
        (Net(after_many(in_a_number_of_c)), f"'NUMBER' .* {CHANGES}"),
        (Net(after_many(in_objects)), f"'OBJECTS' .* {CHANGES}"),
        (Net(lambda s, x: s.b(applied(s.a(x)))), f"'n' .* {CHANGES}"),
        (Net(lambda s, x: s.b(noisy(s.a(x)))), DRAWS),
        (Net(unpacks_noise), DRAWS),
        (Net(turns, n=0), f"'n' .* {CHANGES}"),
        (Net(swaps, q=lambda _: [1.0, 2.0]), f"'q' .* {CHANGES}"),
        (Net(orders, o=lambda _: collections.OrderedDict(a=1.0, b=2.0, c=3.0)), f"'o' .* {CHANGES}"),
        (layered(moves_on, nn.ModuleList([nn.Tanh(), nn.Sigmoid(), nn.Identity()])), "'layers' of ModuleL"),
        (layered(lambda s: s.layers.append(nn.Tanh()), nn.Sequential(nn.Tanh())), "'layers' of Sequential"),
        (late(freezes), "forward\\(\\) changes 'a.weight'"),
    ]
    check(rows, rounds=9)


class Ordered(collections.OrderedDict):
    def __init__(self, scale, _):
        super().__init__(scale=scale)

    def __deepcopy__(self, _):
        return self


@contextlib.contextmanager
def timed():
    yield


class Timed(Net):
    def __init__(self):
        super().__init__(None)

    @timed()
    def forward(self, x):
        return self.b(x)


def doubles_its_inputs(net, x):
    torch._foreach_mul_([x], 2.0)
    return net.b(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(lambda s, x: s.b(x * mask(x.shape[1]))),
        lambda: Net(doubles_its_inputs),
        lambda: Net(lambda s, x: s.b(x) * s.o["scale"], o=Ordered(2.0, 0)),
        Timed,
    ],
)
def test_what_is_right_is_computed_as_in_pytorch(make):
    assert_as_in_pytorch(make)


MIXED = "depends on the other examples of its batch"


def test_what_fused_clients_would_compute_together():
    gradients = on_hidden(lambda _, gradient: gradient.clamp(-0.01, 0.01))
    rows = [
        (Net(lambda s, x: plainly(s, x) * len(x) / 6), MIXED),
        (Net(lambda s, x: plainly(s, x) * (1.0 if len(x) < 20 else 0.5)), MIXED),
        (Net(lambda s, x: plainly(s, x * (x[:, :1] > x[:, 0].median()))), MIXED),
        (Net(lambda s, x: s.b(x / x.abs().max().clamp(min=1.5))), MIXED),
        (Net(gradients), "A hook on gradients, .*; use execution: loop"),
    ]
    check(rows, "fused")
    check([(late(lambda s, x, y: s.b(x - x.mean(0))), MIXED)], "fused", rounds=9)  # a condition, later
    assert_as_in_pytorch(lambda: Net(plainly), "fused")
