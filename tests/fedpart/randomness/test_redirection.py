"""What a network draws from is found in its first pass; generators that cannot be redirected are refused."""

import cProfile
import random
import sys
import threading
from functools import partial

import passes
import pytest
import torch
from passes import ONES, Calls, Checkpointed, Model, Stateful, averaged
from torch import nn

from fedpart import uniform
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.redirection import Redirection


def passed(model, redirection, training=True, x=ONES):
    noise = Noise(NoiseKey(0, "test"))
    kind = training, torch.is_grad_enabled(), ""
    return redirection(kind, noise.active, lambda: model.train(training)(x), x)


def nested(call):
    return Model(passes.nested(call))


def test_a_network_that_draws_nothing_is_watched_once():
    watching = []

    def call(x):
        watching.append(sys.getprofile() is not None)
        return uniform(x.shape, like=x)  # this is no draw of torch's

    model = nested(call)
    redirection = Redirection(model)
    found = [passed(model, redirection, training) for training in (True, True, False, False)]
    assert watching == [True, False, True, False]
    assert all(torch.equal(one, found[0]) for one in found)


def test_what_draws_in_training_alone_is_found_in_training():
    model = Model(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    redirection = Redirection(model)
    resting = passed(model, redirection, training=False)
    first = passed(model, redirection)
    assert (first == 0).any() and not (resting == 0).any()
    torch.manual_seed(0)
    again = [passed(model, redirection) for _ in range(2)]
    assert torch.equal(again[0], first) and torch.equal(again[1], first)
    assert torch.equal(passed(model, redirection, training=False), resting)


def in_a_thread(call, *arguments):
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join()


class Late(nn.Module):
    """Draws where its inputs are large; its own noise comes first."""

    def forward(self, x):
        x = x * uniform(x.shape, like=x)
        return nn.functional.dropout(x, 0.5) if x.sum() > 6 else x


@pytest.mark.parametrize("before", [0.1, 10.0], ids=["later passes draw", "the first one does"])
def test_a_network_that_draws_in_later_passes_alone_draws_reproducibly(before):
    model = Model(Late())
    redirection = Redirection(model)
    passed(model, redirection, x=torch.full((3, 4), before))
    x = 10 * torch.ones(3, 4)
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        found.append(passed(model, redirection, x=x))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found[0], found[1]) and (found[0] == 0).any()
    first = Redirection(model)
    assert torch.equal(passed(model, first, x=x), found[0]), "the draws begin where those of a first pass do"


def test_somebody_elses_draws_change_nothing():
    model = Model(Calls(lambda x: uniform(x.shape, like=x)))
    redirection = Redirection(model)
    first = passed(model, redirection)
    calls = []

    def once(x):
        if not calls:
            in_a_thread(torch.rand, 3)
        calls.append(x)
        return uniform(x.shape, like=x)

    model.module.call = once
    assert torch.equal(passed(model, redirection), first) and len(calls) == 2
    assert torch.equal(passed(model, redirection), first) and len(calls) == 3, "it is no pass that draws"


def test_a_pass_that_fails_settles_nothing_and_leaves_no_hook():
    def failing(x):
        raise RuntimeError("no")

    model = nested(failing)
    redirection = Redirection(model)
    before = [dict(hooks) for hooks in hooks_of_all_modules()]
    with pytest.raises(RuntimeError, match="no"):
        passed(model, redirection)
    assert [dict(hooks) for hooks in hooks_of_all_modules()] == before
    model.module[1][1].call = lambda x: random.random()
    with pytest.raises(ValueError, match=r"Calls at '1\.1' draws from Python's random module"):
        passed(model, redirection)


def hooks_of_all_modules():
    modules = nn.modules.module
    return modules._global_forward_pre_hooks, modules._global_forward_hooks


def test_another_thread_may_draw_from_pythons_generator_and_a_layer_may_look_at_it():
    """Those of Flower and Ray do, and nobody's layer is to blame; torch.compile sets its state."""

    def meanwhile(x):
        in_a_thread(random.random)
        random.setstate(random.getstate())
        return 1.0

    model = Model(Calls(meanwhile))
    before = random.getstate()
    passed(model, Redirection(model))
    assert random.getstate() != before


def test_a_profiler_or_profile_function_goes_on_after_the_first_pass():
    model = nested(lambda x: x)
    with cProfile.Profile() as profile:
        profiler = sys.getprofile()
        passed(model, Redirection(model))
        assert sys.getprofile() is profiler
        nested(model)
    assert any(entry.code is nested.__code__ for entry in profile.getstats())
    before, function = sys.getprofile(), lambda *event: None
    sys.setprofile(function)
    try:
        passed(model, Redirection(model))
        assert sys.getprofile() is function
    finally:
        sys.setprofile(before)


def test_a_layer_that_changes_nothing_in_evaluation_mode_may_stay_in_it():
    net = nn.Sequential(nn.Linear(4, 4), Stateful(averaged, training_alone=True))
    with pytest.raises(ValueError, match="changes its buffer"):
        passes.passed(net)
    net[1].eval()
    passes.passed(net)
    for size in (4, 7):  # a cache may be made again, or grow
        update = partial(lambda size, layer, x: setattr(layer, "state", torch.ones(size)), size)
        passes.passed(nn.Sequential(nn.Linear(4, 4), Stateful(update)))
    layers = nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), Checkpointed(lambda block, x: block(x))
    for training in (True, False):  # layers that are computed once, and norms at rest
        passes.passed(nn.Sequential(*layers), training)
