"""BatchNorm replaced, GroupNorm behind what has no gradient, and modules that are copied."""

import copy
import subprocess
import sys
from functools import partial

import pytest
import refusals
import torch
from adapted import NormAndReLU
from places import importing
from torch import nn
from torch.nn import functional as F

from fedpart import Batch, Task, federate, replace_batchnorm
from fedpart.nn.layers import FrozenBatchNorm
from fedpart.nn.layers.copying import copied


def trained(layer):
    g = torch.Generator().manual_seed(0)
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.is_floating_point():
            tensor.data = 0.5 + torch.rand(tensor.shape, generator=g)
    return layer


LAYERS = {
    "1d": (lambda **options: nn.BatchNorm1d(6, **options), (5, 6)),
    "1d of sequences": (lambda **options: nn.BatchNorm1d(6, **options), (5, 6, 3)),
    "2d": (lambda **options: nn.BatchNorm2d(6, **options), (5, 6, 3, 2)),
    "3d": (lambda **options: nn.BatchNorm3d(6, **options), (5, 6, 3, 2, 2)),
    "sync": (lambda **options: nn.SyncBatchNorm(6, **options), (5, 6, 3, 2)),
}


CASES = [(name, {}) for name in LAYERS] + [("sync", {"affine": False})]
CASES += [("2d", options) for options in ({"affine": False}, {"bias": False}, {"eps": 0.1})]


@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_frozen_is_the_original_in_evaluation_mode_to_the_bit(name, options):
    make, shape = LAYERS[name]
    module = nn.Sequential(trained(make(**options)))
    frozen = replace_batchnorm(module, "frozen")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    expected = module.eval()(x)
    for training in (True, False):
        assert torch.equal(frozen.train(training)(x), expected)
        assert not frozen[0].training
    assert not torch.equal(module.train()(x), expected)
    assert isinstance(replace_batchnorm(frozen, "group")[0], FrozenBatchNorm), "once replaced it stays"


@pytest.mark.parametrize("by", ["group", "frozen"])
def test_the_original_is_untouched(by):
    module = nn.Sequential(nn.Conv2d(1, 4, 3), trained(nn.BatchNorm2d(4)), nn.Sequential(nn.BatchNorm2d(4)))
    before = copy.deepcopy(module.state_dict())
    new = replace_batchnorm(module, by)
    with torch.no_grad():
        for tensor in new.state_dict().values():
            tensor.zero_()
    assert [type(layer) for layer in module] == [nn.Conv2d, nn.BatchNorm2d, nn.Sequential]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not any(type(layer) is nn.BatchNorm2d for layer in new.modules())


@pytest.mark.parametrize("channels, groups", [(64, 4), (16, 1), (1024, 32), (24, 1), (1, 1), (96, 6)])
def test_groups(channels, groups):
    """As many as there may be with 16 channels or more in each, at most 32."""
    norm = replace_batchnorm(nn.BatchNorm2d(channels), "group")
    assert type(norm) is nn.GroupNorm and norm.num_groups == groups and norm.num_channels == channels


def test_a_group_norm_keeps_scale_bias_and_what_is_trained():
    layer = trained(nn.BatchNorm2d(32, eps=0.02))
    layer.bias.requires_grad_(False)
    norm = replace_batchnorm(layer.double().eval(), "group")
    assert torch.equal(norm.weight, layer.weight) and torch.equal(norm.bias, layer.bias)
    assert norm.weight.requires_grad and not norm.bias.requires_grad
    assert norm.weight.dtype == torch.float64 and not norm.training
    x = torch.randn(3, 32, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = F.group_norm(x, 2, layer.weight, layer.bias, 0.02)
    torch.testing.assert_close(norm(x), expected)
    for options, names in (({"affine": False}, []), ({"bias": False}, ["weight"])):
        norm = replace_batchnorm(nn.BatchNorm2d(32, **options), "group")
        assert [name for name, _ in norm.named_parameters()] == names


@pytest.mark.parametrize("by", ["group", "frozen"])
@pytest.mark.parametrize("layer", [nn.BatchNorm1d(16), nn.SyncBatchNorm(16)], ids=["1d", "sync"])
def test_a_layer_in_several_places_stays_one(by, layer):
    body = nn.Sequential(layer, nn.Tanh())
    module = nn.ModuleDict({"a": nn.Sequential(layer, nn.Linear(16, 16)), "b": body, "c": body})
    new = replace_batchnorm(module, by)
    assert new["a"][0] is new["b"][0] and new["b"] is new["c"]
    assert len(list(new.parameters())) == len(list(module.parameters()))


@pytest.mark.parametrize("by, kind", [("group", nn.GroupNorm), ("frozen", FrozenBatchNorm)])
def test_every_road_leads_to_a_task(by, kind):
    module = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    with pytest.raises(ValueError, match=r"use module = fedpart.replace_batchnorm\(module, \"group\"\)"):
        Task(module)
    task = Task(replace_batchnorm(module, by))
    assert isinstance(task.module[1], kind)
    folds = {entry.name: entry.fold for entry in task.parameter_space(3).entries}
    assert (folds["1.weight"], folds["1.bias"]) == ("product", "sum")


@pytest.mark.parametrize("by", ["group", "frozen"])
def test_hooks_stay(by):
    module = nn.Sequential(trained(nn.BatchNorm1d(16)))
    plain = replace_batchnorm(module, by)
    module[0].register_forward_pre_hook(lambda layer, args: (3 * args[0],))
    module[0].register_forward_hook(lambda layer, args, kwargs, out: 2 * out, with_kwargs=True)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    assert torch.equal(replace_batchnorm(module, by)(x), 2 * plain(3 * x))


def test_without_running_statistics_there_is_nothing_to_freeze():
    module = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16, track_running_stats=False))
    with pytest.raises(ValueError, match=r"BatchNorm1d at '1' has no running .*\(module, \"group\"\)"):
        replace_batchnorm(module, "frozen")
    assert isinstance(replace_batchnorm(module, "group")[1], nn.GroupNorm)


def test_layers_that_cannot_be_replaced():
    plain, derived = nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), NormAndReLU(4))
    lazy = [nn.Sequential(nn.LazyBatchNorm1d(affine=affine).eval()) for affine in (True, False)]
    kinds = "replaced by 'group' or by 'frozen', not by"
    rows = [(plain, by, rf"{kinds} {by!r}") for by in ("layer", "", None)]
    for by in ("group", "frozen"):
        rows.append((derived, by, r"NormAndReLU is a BatchNorm .*; call layer.eval\(\) to keep"))
        rows += [(m, by, r"LazyBatchNorm1d is not known yet; .* module\(inputs\[:2\]\)") for m in lazy]
    refusals.check(
        (f"{i}: {module} by {by}", partial(replace_batchnorm, module, by), says)
        for i, (module, by, says) in enumerate(rows)
    )


NETWORK = """
import torch
from torch import nn

def network(frozen):
    torch.manual_seed(0)
    body, head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)
    body.requires_grad_(not frozen)
    return nn.Sequential(body, nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
"""
STEP = """
from fedpart import Batch, Task

for precision in ("fp32", "bf16"):
    task = Task(network(True), samples=1, channels_last=True, precision=precision)
    task = task.replace()  # which does not guard it twice
    w = {name: p.detach().requires_grad_() for name, p in task.module.named_parameters() if p.requires_grad}
    batch = Batch(torch.rand(6, 3, 8, 8), torch.arange(6) % 5)
    task.loss(w, task.psi_space.initial(), batch, None).backward()
    assert w["1.weight"].grad.any()
    assert len(task.module[1]._forward_pre_hooks) == 1
"""


@pytest.mark.slow
def test_its_own_numbers_are_trained_behind_frozen_ones():
    """In a process of its own, which a segmentation fault would end."""
    place = {"PYTHONPATH": importing(__file__)}
    done = subprocess.run([sys.executable, "-c", NETWORK + STEP], env=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_its_gradient_is_that_of_the_other_memory_format():
    found = []
    for channels_last in (False, True):
        scope = {}
        exec(NETWORK, scope)
        task = Task(scope["network"](True), samples=1, channels_last=channels_last, precision="fp64")
        w = {n: p.detach().requires_grad_() for n, p in task.module.named_parameters() if p.requires_grad}
        torch.manual_seed(1)
        batch = Batch(torch.rand(6, 3, 8, 8, dtype=torch.float64), torch.arange(6) % 5)
        found.append(torch.autograd.grad(task.loss(w, task.psi_space.initial(), batch, None), [*w.values()]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert isinstance(task.module[1], nn.GroupNorm)


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        self.features = torch.tanh(self.body(x))
        self.more = {"same": self.features, "others": [2 * self.features, 3 * self.features]}
        return self.head(self.features)


def test_activations_are_copied_without_their_gradient_and_a_result_is_a_module():
    net, x = Keeps(), torch.ones(5, 4)
    net(x)
    new = copied(net)
    assert new.features.is_leaf and torch.equal(new.features, net.features)
    assert new.more["same"] is new.features and new.features is not net.features
    assert all(map(torch.equal, new.more["others"], net.more["others"]))
    assert not net.features.is_leaf
    assert new.body.weight is not net.body.weight and torch.equal(new(x), net(x))
    clients = [(torch.rand(3, 4), torch.randint(2, (3,))) for _ in range(4)]
    options = {"validation": clients[0], "evaluation_samples": 1, "evaluate_every": 1}
    result = federate(Task(net, samples=2), clients, rounds=1, chunks=(0.5, 0.5), **options)
    assert result.state.task.module.features.requires_grad, "it has computed"
    assert result.module()(x).shape == (5, 2)
