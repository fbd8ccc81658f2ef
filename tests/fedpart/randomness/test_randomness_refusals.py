"""What a first pass refuses: draws that cannot be redirected, layers computed again, changed buffers."""

import random
from functools import partial

import numpy as np
import refusals
import torch
from passes import ONES, Calls, Checkpointed, Model, Stateful, averaged, nested, passed
from problems import outputs
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from fedpart import Task
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.redirect import TorchDraws
from fedpart.randomness.redirection import Redirection


class Outer(nn.Module):
    """Calls a layer after it has drawn."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Tanh()

    def forward(self, x):
        return self.inner(x * random.random())


def passing(module):
    """A call of a pass through the network; the same network at every call."""
    model = Model(module)
    redirection, noise, x = Redirection(model), Noise(NoiseKey(0, "test")), torch.ones(3, 4)
    return lambda: redirection((True, True, ""), noise.active, lambda: model.train()(x), x)


def test_draws_that_cannot_be_redirected():
    """None is accepted the second time either."""
    python, of_numpy = "draws from Python's random module", "draws from NumPy's global generator"
    draw_with = ", .*; draw with torch.rand"
    rows = [
        (nested(lambda x: random.random()), rf"^Calls at '1\.1' {python}{draw_with}"),
        (nested(lambda x: np.random.rand()), rf"^Calls at '1\.1' {of_numpy}{draw_with}"),
        (nested(lambda x: float(np.random.permutation(3)[0])), rf"^Calls at '1\.1' {of_numpy}{draw_with}"),
        (Calls(lambda x: random.random()), f"Calls at 'the top level' {python}"),
        (Calls(lambda x: random.getrandbits(3)), python),
        (Calls(lambda x: random.randint(0, 3)), python),
        (nn.Sequential(nn.Tanh(), Outer()), "Outer at '1' draws"),
    ]
    calls = 2 * [(passing(module), says) for module, says in rows]
    task = Task(nn.Sequential(nn.Linear(4, 2), Calls(lambda x: random.gauss(0, 1))), samples=1)
    calls.append((partial(passed, task), f"Calls at '1' {python}"))
    refusals.check((f"{i}: {says}", call, ValueError, says) for i, (call, says) in enumerate(calls))
    outputs(task, ONES)  # without noise the caller has asked for any numbers


def test_a_later_draw_below_of_what_torchs_modes_see():
    below = []

    def call(x):
        if below:
            with torch._C._DisableTorchDispatch():
                return torch.rand(3, 1)
        return 0

    run = passing(nested(call))
    run()
    below.append(True)
    says = "from torch's global generator .*; draw with torch.rand"
    refusals.check((f"pass {i}", run, ValueError, says) for i in (1, 2))


def drawn(call):
    with Noise(NoiseKey(1, "test")).active(), TorchDraws():
        call()


def test_draws_without_a_rule():
    ones = torch.ones(4)
    rows = [
        ("multinomial", lambda: torch.multinomial(ones, 2)),
        ("multinomial", lambda: torch.distributions.Categorical(ones).sample()),
        ("poisson", lambda: torch.poisson(ones)),
        ("_standard_gamma", lambda: torch.distributions.Gamma(1.0, 1.0).sample()),
    ]
    says = "with torch's {}, .*; draw with torch.rand, "
    refusals.check(
        (f"{i}: {name}", partial(drawn, call), ValueError, says.format(name))
        for i, (name, call) in enumerate(rows)
    )


def test_layers_that_would_be_computed_again():
    """The gradient would be that of other weights: they are the module's for the time of the pass alone."""
    says = (
        r"^Checkpointed at '1' computes with torch.utils.checkpoint, .*; "
        r"call model.gradient_checkpointing_disable\(\), or leave torch.utils.checkpoint out\.$"
    )
    ways = {
        "reentrant": partial(checkpoint, use_reentrant=True),
        "not reentrant": partial(checkpoint, use_reentrant=False),
        "sequential": lambda block, x: checkpoint_sequential(block, 2, x, use_reentrant=False),
    }
    rows = []
    for name, again in ways.items():
        for inside in (nn.Tanh(), nn.Dropout(0.3)):
            net = nn.Sequential(nn.Linear(4, 4), Checkpointed(again, inside))
            rows += [(f"{name}, {inside}, pass {i}", partial(passed, net)) for i in (1, 2)]
    refusals.check((what, call, ValueError, says) for what, call in rows)


def test_buffers_that_change():
    def made_anew(layer, x):
        layer.state = 0.9 * layer.state + 0.1 * x.detach().mean(0)

    says = r"^Stateful at '1' changes its buffer 'state' .*; call module.get_submodule\('1'\).eval\(\) if"
    nets = [nn.Sequential(nn.Linear(4, 4), Stateful(update)) for update in (averaged, made_anew)]
    refusals.check((f"{i}", partial(passed, net), ValueError, says) for i, net in enumerate(nets))
