"""A pooled convolution is a convolution, then pooling, whether it goes by pixels or by blocks of them."""

import pytest
import torch
from torch.nn import functional as F

from fedpart.layers import PooledConv2d, pooled_convolution
from fedpart.layers.pooled_convolution import kernel_of_blocks


def by_pixels(x, weight, bias):
    return F.relu(F.max_pool2d(F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2), 2))


def images(n, height, width, dtype=torch.bfloat16, highest=3):
    """Small integers, which 16 bits add and multiply exactly, with strides that are channels-last."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-highest, highest + 1, (n, 1, height, width), generator=generator).to(dtype)
    return x.as_strided(x.shape, (height * width, 1, width, 1))


def layer_of_integers(channels, kernel_size):
    torch.manual_seed(1)
    layer = PooledConv2d(1, channels, kernel_size)
    for parameter in layer.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).float()
    return layer


@pytest.fixture
def blocks(monkeypatch):
    """How often images have been convolved between blocks."""
    calls = []
    monkeypatch.setattr(
        pooled_convolution, "kernel_of_blocks", lambda weight: calls.append(1) or kernel_of_blocks(weight)
    )
    return calls


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_the_kernel_of_blocks_computes_what_that_of_pixels_does(size):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 1, 6, 10).double(), torch.randn(3, 1, size, size).double()
    of_blocks = kernel_of_blocks(weight)
    reach = of_blocks.shape[-1] // 2
    found = F.conv2d(F.pixel_unshuffle(x, 2), of_blocks, padding=reach).view(2, 2, 2, 3, 3, 5)
    expected = F.conv2d(x, weight, padding=size // 2).view(2, 3, 3, 2, 5, 2).permute(0, 3, 5, 1, 2, 4)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("channels", "size"), [(20, 5), (3, 5), (8, 3)])
@pytest.mark.parametrize("autocast", [False, True])
def test_values_ties_and_gradients_are_those_of_the_two_steps(blocks, channels, size, autocast):
    layer = layer_of_integers(channels, size)
    x = images(4, 8, 12, torch.float32 if autocast else torch.bfloat16).requires_grad_()
    if not autocast:
        layer.to(torch.bfloat16)
    found = []
    for function in (layer, lambda x: by_pixels(x, layer.weight, layer.bias)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = function(x)
        weights = torch.arange(out.numel()).view(out.shape).remainder(3).to(out.dtype) - 1
        found.append((out, *torch.autograd.grad(out, (x, layer.weight, layer.bias), weights)))
    assert len(blocks) == 1
    for ours, torchs in zip(*found, strict=True):
        assert ours.dtype == torchs.dtype and torch.equal(ours, torchs)


@pytest.mark.parametrize(
    "x",
    [
        images(2, 4, 6, torch.float32),
        images(2, 4, 6).clone(memory_format=torch.contiguous_format),
        images(2, 5, 6),
        images(2, 4, 6)[:0],
        images(2, 4, 6).expand(2, 2, 4, 6),
    ],
    ids=["float32", "default layout", "odd", "none", "two channels"],
)
def test_other_images_go_by_pixels(blocks, x):
    layer = PooledConv2d(x.shape[1], 3, 5).to(x.dtype)
    assert torch.equal(layer(x), by_pixels(x, layer.weight, layer.bias)) and not blocks


def test_without_numba_and_under_vmap_images_go_by_pixels(blocks, monkeypatch):
    layer, x = layer_of_integers(4, 5).to(torch.bfloat16), images(6, 4, 6)
    stacked = x.view(2, 3, 1, 4, 6).as_strided((2, 3, 1, 4, 6), (72, 24, 1, 6, 1))
    assert torch.equal(torch.func.vmap(layer)(stacked).flatten(0, 1), by_pixels(x, layer.weight, layer.bias))
    monkeypatch.setattr(pooled_convolution, "compiled", lambda: False)
    assert torch.equal(layer(x), by_pixels(x, layer.weight, layer.bias)) and not blocks
