"""Pooling and ReLU in one pass are torch's, to the bit."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpart.kernels import door
from fedpart.nn.layers import MaxPoolReLU

SPECIAL = [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, 1e-40, -1e-40]


def images(shape, dtype, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return x.contiguous(memory_format=torch.channels_last)


def both(x):
    found = []
    for layer in (MaxPoolReLU(), lambda x: F.relu(F.max_pool2d(x, 2))):
        leaf = x.detach().requires_grad_()
        out = layer(leaf)
        weights = torch.arange(out.numel()).view(out.shape).to(x.dtype) + 1
        found.append((out.detach(), *torch.autograd.grad(out, leaf, weights)))
    return found


def compiled(x):
    return "Pool" in type(MaxPoolReLU()(x.detach().requires_grad_()).grad_fn).__name__


# numba compiles for each number of words in a pixel: two channels are one in bfloat16, where they are even
KINDS = [(torch.float32, 50), (torch.bfloat16, 1), (torch.float32, 4), (torch.bfloat16, 4)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype, channels", KINDS)
def test_random_images(dtype, channels):
    x = images((5, channels, 4, 6), dtype)
    ours, torchs = both(x)
    assert compiled(x) and all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_zeros_infinities_and_subnormals_and_what_is_not_a_number(dtype):
    few = torch.tensor(SPECIAL, dtype=dtype)
    places = torch.randint(len(few), (8, 4, 6, 6), generator=torch.Generator().manual_seed(1))
    ours, torchs = both(few[places].contiguous(memory_format=torch.channels_last))
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))
    for sign in (1.0, -1.0):
        x = images((2, 4, 4, 4), dtype)
        x[1, 2, 3, 0] = sign * torch.nan
        out = MaxPoolReLU()(x)
        assert compiled(x) and out.isnan().sum() == 1 and out[1, 2, 1, 0].isnan()


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 3, 4, 4),
        images((2, 3, 5, 5), torch.float32),
        images((2, 3, 4, 4), torch.float64),
        torch.randn(3, 4, 4),
        images((0, 3, 4, 4), torch.float32),
    ],
    ids=["contiguous", "odd", "float64", "one image", "none"],
)
def test_what_the_kernel_does_not_take_torch_computes(x):
    ours, torchs = both(x)
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))


def test_without_numba_torch_computes(monkeypatch):
    x = images((3, 4, 6, 6), torch.float32)
    expected = MaxPoolReLU()(x)
    monkeypatch.setattr(door, "compiles", lambda: False)
    assert torch.equal(MaxPoolReLU()(x), expected) and not compiled(x)


def test_under_vmap_torch_computes():
    layer = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), MaxPoolReLU())
    x = torch.randn(4, 5, 2, 6, 6)
    torch.testing.assert_close(torch.func.vmap(layer)(x), torch.stack([layer(one) for one in x]))
