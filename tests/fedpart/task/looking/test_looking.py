"""What a network does in forward() beside computing: as in plain PyTorch, or refused; never otherwise."""

import random
import threading
from collections import deque
from functools import partial

import numpy as np
import pytest
import refusals
import torch
from looked import LOST, Net, assert_as_in_pytorch, check, data, ours
from torch import nn
from torch.nn import functional as F

import fedpart

WEIGHT = "forward\\(\\) reaches .* by another way than as a parameter of its layer, .*; use self.NAME"
KEPT = "'{}' of Net at 'the top level' is changed in forward\\(\\), .*; compute it anew in each pass"
DRAWN = "'{}' of Net at 'the top level' draws from a generator of its own, .*; draw with torch.rand"
GLOBAL = np.random.default_rng(0)


def doubled(net, x):
    with torch.no_grad():
        net.b.weight.mul_(0.9)
    return net.b(x)


def halved(net, x):
    net.b.weight.data = torch.renorm(net.b.weight.data, 2, 0, 0.25)
    return net.b(x)


def replaced(net, x):
    net.w = nn.Parameter(net.w.detach() * 0.9)
    return x @ net.w


def test_weights_that_are_reached_by_another_way():
    def closure(net):
        return lambda x: net.b(torch.tanh(net.a(x)))

    other = nn.Linear(6, 3)
    rows = [
        (Net(lambda s, x: x @ s.all[0], all=lambda s: [s.w]), "'w'"),
        (Net(lambda s, x: x @ s.all["w"], all=lambda s: {"w": s.w}), "'w'"),
        (Net(lambda s, x: s.b(s.all[0](x)), all=lambda s: [nn.Linear(6, 6)]), r"a weight \[6, 6\]"),
        (Net(lambda s, x: s.net(x), net=lambda s: closure(s)), "'b.weight'|'a.weight'|'a.bias'"),
        (Net(lambda s, x: s.a(x) @ s.t, t=lambda s: s.w.t().t()), "made of weights"),
        (Net(lambda s, x: s.a(x) @ s.t, t=lambda s: s.w.detach()), "made of weights"),
        (Net(lambda s, x: s.a(x) @ (s.t * 1), t=lambda s: s.w * 2), "made of weights"),
        (Net(lambda s, x: other(s.a(x))), r"a weight \[3, 6\] that is no parameter of it"),
    ]
    check(((net, f"(?=.*({what})).*{WEIGHT}") for net, what in rows), error=fedpart.ClientError)


def normalised(net, x):
    return net.b(x.sub_(0.5).div_(0.25))


@pytest.mark.parametrize(
    "forward, execution",
    [
        *((normalised, execution) for execution in ("loop", "fused", "grouped")),
        (lambda s, x: s.b(F.relu_(x)), "fused"),
        (lambda s, x: s.b(x.detach().mul_(2.0)), "grouped"),
        (lambda s, x: s.b(x.clamp_(-99, 99)), "loop"),  # which changes nothing
        (lambda s, x: s.b(x.view(-1, 2, 3).add_(1).view(-1, 6)), "fused"),
        (lambda s, x: s.b(s.a(x).sigmoid().clone().mul_(2)) + torch.zeros(3, requires_grad=True), "loop"),
    ],
)
def test_a_forward_that_writes_into_what_it_is_given_computes_as_in_pytorch(forward, execution):
    assert_as_in_pytorch(lambda: Net(forward), execution)


@pytest.mark.parametrize("through", ["fit", "federate"])
def test_validation_data_stay_as_they_are(through):
    inputs, targets = data()
    x, y = inputs[0].clone(), targets[0]
    task = fedpart.Task(Net(normalised), samples=1)
    if through == "fit":
        fedpart.fit(task, (inputs[1], targets[1]), validation=(x, y), iterations=4, evaluate_every=1)
    else:
        options = {"cohort": 2, "chunks": (0.5, 0.5), "validation": (x, y), "evaluate_every": 1}
        fedpart.federate(task, [*zip(inputs, targets, strict=True)], rounds=3, **options)
    assert torch.equal(x, inputs[0])


def test_numbers_that_share_the_memory_of_a_weight():
    """Training moves both in plain PyTorch, and would not here."""

    def tie(net, of):
        net.a.weight = nn.Parameter(of(net))

    rows = [
        (Net(lambda s, x: s.b(s.a(x)), t=lambda s: tie(s, lambda s: s.w.data.t()[:, :3])), "'a.weight', 'w'"),
        (Net(lambda s, x: s.b(x) + s.a.bias[:3], t=lambda s: setattr(s.a.bias, "data", s.w.data[:, 0])), "w"),
        (Net(lambda s, x: s.b(x) + torch.tensor(s.n), n=lambda s: s.b.bias.detach().numpy()), "'b.bias'"),
        (Net(lambda s, x: s.b(x) + s.n[0].item(), n=lambda s: [s.b.bias.data.numpy()[:1]]), "'b.bias'"),
    ]
    check(((net, f"{named}.* share.* memory") for net, named in rows), error=ValueError)


def test_weights_that_forward_changes_and_state_in_plain_attributes():
    rows = [(doubled, "b.weight"), (halved, "b.weight"), (replaced, "w")]
    check((Net(forward), LOST.format(name)) for forward, name in rows)
    rows = [
        (Net(hidden, h=None), "h"),
        (Net(counted, n=0), "n"),
        (Net(remembered, q=lambda s: deque(maxlen=4)), "q"),
        (Net(near_the_start, c=None), "c"),
    ]
    check((net, KEPT.format(name)) for net, name in rows)


def hidden(net, x):
    out = net.b(x)
    if net.h is not None:
        out = out + 0.1 * net.h
    net.h = out.detach()
    return out


def counted(net, x):
    net.n += 1
    return net.b(x)


def remembered(net, x):
    out = net.b(x)
    net.q.append(out.detach())
    return out + sum(net.q)


def near_the_start(net, x):
    if net.c is None:
        net.c = [weight.detach().clone() for weight in net.parameters()]
    pairs = zip(net.parameters(), net.c, strict=True)
    return net.b(x) + sum((weight - start).square().sum() for weight, start in pairs)


def helper():
    return GLOBAL.random()


def test_generators_of_one_s_own():
    inside = random.Random(2)
    rows = [
        (Net(lambda s, x: s.b(x) * s.rng.random(), rng=lambda s: np.random.default_rng(0)), "rng"),
        (Net(lambda s, x: s.b(x) * s.rng.rand(), rng=lambda s: np.random.RandomState(0)), "rng"),
        (Net(lambda s, x: s.b(x) * s.rng.gauss(0, 1), rng=lambda s: random.Random(0)), "rng"),
        (Net(lambda s, x: s.b(x) * s.all["r"].random(), all=lambda s: {"r": random.Random(0)}), "all"),
        (Net(lambda s, x: s.b(x) * inside.random()), "call"),
        (Net(lambda s, x: s.b(x) * GLOBAL.normal()), "GLOBAL"),
        (Net(lambda s, x: s.b(x) * helper()), "GLOBAL"),
        (Net(lambda s, x: s.b(x) * torch.rand((), generator=s.g), g=lambda s: torch.Generator()), "g"),
    ]
    check((net, DRAWN.format(name)) for net, name in rows)
    random.gauss(0, 1)  # the module keeps the second number, which nobody draws in the pass then
    check([(Net(lambda s, x: s.b(x) * random.gauss(0, 1)), "draws from Python's random module")])


def test_networks_that_tie_examples_together_are_not_fused():
    forwards = [
        lambda s, x: s.b(x - x.mean(0)),
        lambda s, x: s.b((x @ x.t()).softmax(-1) @ x),
        lambda s, x: s.b(x * x[:1]),
        lambda s, x: s.b(x.index_fill_(0, torch.tensor([0]), 0.0)),
    ]
    says = "depends on the other examples of its batch, .*; use execution: loop"
    check(((Net(forward), says) for forward in forwards), "fused", fedpart.ClientError)


def test_hooks_on_the_gradient_of_a_weight():
    """A copy has none of them, so that a part that they freeze would be trained."""

    def hooked(name):
        net = Net(lambda s, x: s.b(x))
        getattr(net.b.weight, name)(lambda _: None)
        return net

    says = "'b.weight' has a hook on its gradient, which its copies lose; remove it, and compute"
    calls = ("register_hook", "register_post_accumulate_grad_hook")
    refusals.check((call, partial(fedpart.Task, hooked(call)), says) for call in calls)


def test_data_whose_gradient_leads_to_what_made_them_and_data_of_another_width():
    encoder, (inputs, targets) = nn.Linear(6, 6), data()
    made = [(encoder(x), y) for x, y in zip(inputs, targets, strict=True)]
    net, again = Net(lambda s, x: s.b(x)), [(x.detach(), y) for x, y in made]
    run = partial(fedpart.federate, net, rounds=2, cohort=2, chunks=(1.0,))
    assert torch.equal(run(made).module().b.weight, run(again).module().b.weight)
    assert encoder.weight.grad is None
    inputs, targets = data()
    other = (inputs[0, :, :5], targets[0])
    shards, options = [*zip(inputs, targets, strict=True)], {"rounds": 2, "cohort": 2, "chunks": (1.0,)}
    run = partial(fedpart.federate, nn.Linear(6, 3), shards, **options)
    says = "^The {} data do not fit the network: .*shapes cannot be multiplied"
    kinds = ("test", "validation")
    refusals.check((kind, partial(run, **{kind: other}), says.format(kind)) for kind in kinds)


def shown(net, x):
    net.h = net.b(x)
    net.history.append(net.h.mean().item())
    return net.h


def counts(net, x):
    net.h = np.bincount(np.arange(len(x)) % 3)  # another array, which holds the same
    net.seen = x.mean(0).numpy()
    return net.b(x)


def cached(net, x):
    if "mask" not in net.d:
        net.d["mask"] = torch.arange(3.0)
    net.rows = len(x)
    return net.b(x) * net.d["mask"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(shown, h=None, history=lambda s: []),
        lambda: Net(cached, d=lambda s: {}, rows=None),
        lambda: Net(counts, h=None),
        lambda: Net(lambda s, x: s.b(x @ torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))),
        lambda: Net(lambda s, x: s.b(x) + x @ s.p[0], p=lambda s: nn.ParameterList([s.w])),
        lambda: Net(lambda s, x: s.b(x) + x @ s.w.t().t()),
        lambda: Net(lambda s, x: x @ s.get_parameter("b.weight").t() + s.b.bias),
        lambda: Net(lambda s, x: s.b(x if isinstance(s.b.weight, nn.Parameter) else 2 * x)),
        lambda: Net(lambda s, x: s.b(x) * sum(isinstance(p, nn.Parameter) for p in s.parameters())),
    ],
)
def test_what_changes_nothing_is_computed_as_in_pytorch(make):
    assert_as_in_pytorch(make)


def test_two_runs_in_threads_and_a_thread_that_draws_disturb_nobody():
    net, found, ends = Net(lambda s, x: s.b(F.dropout(s.a(x), 0.5))), [], threading.Event()
    expected = ours(net)

    def draws():
        while not ends.is_set():
            torch.randn(3)
            np.random.rand()
            random.random()

    def runs():
        for _ in range(2):
            found.append(ours(net))

    other = threading.Thread(target=draws)
    both = [threading.Thread(target=runs) for _ in range(2)]
    for thread in (other, *both):
        thread.start()
    for thread in both:
        thread.join()
    ends.set()
    other.join()
    assert len(found) == 4
    assert all(torch.equal(one[name], expected[name]) for one in found for name in expected)
