"""BatchNorm replaced: by GroupNorm with its scale and bias, or by itself with constant statistics."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import Task, replace_batchnorm
from fedpart.nn.layers import FrozenBatchNorm


def trained(layer):
    """With numbers of its own everywhere."""
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


OPTIONS = [{}, {"affine": False}, {"bias": False}, {"eps": 0.1}]


@pytest.mark.parametrize(
    "name, options",
    [(name, options) for name in LAYERS for options in OPTIONS if name != "sync" or "bias" not in options],
    ids=str,
)
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


@pytest.mark.parametrize(
    "channels, groups", [(64, 4), (16, 1), (1024, 32), (24, 1), (1, 1), (37, 1), (96, 6)]
)
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


@pytest.mark.parametrize(
    "options, names", [({"affine": False}, set()), ({"bias": False}, {"weight"})], ids=str
)
def test_a_group_norm_has_the_parameters_that_there_were(options, names):
    norm = replace_batchnorm(nn.BatchNorm2d(32, **options), "group")
    assert {name for name, _ in norm.named_parameters()} == names


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


def test_replacing_twice_changes_nothing():
    once = replace_batchnorm(nn.Sequential(trained(nn.BatchNorm1d(4))), "frozen")
    for by in ("group", "frozen"):
        again = replace_batchnorm(once, by)
        assert isinstance(again[0], FrozenBatchNorm)
        assert all(map(torch.equal, again.state_dict().values(), once.state_dict().values()))


def test_without_running_statistics_there_is_nothing_to_freeze():
    module = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16, track_running_stats=False))
    way_out = (
        r"BatchNorm1d at '1' has no running statistics .*; use fedpart.replace_batchnorm\(module, \"group\"\)"
    )
    with pytest.raises(ValueError, match=way_out):
        replace_batchnorm(module, "frozen")
    assert isinstance(replace_batchnorm(module, "group")[1], nn.GroupNorm)
