"""Codecs by themselves: closed forms of what they make of numbers, and in how many bytes."""

import numpy as np
import pytest
import torch

from fedpart.updates.codecs import CODECS

BLOCKS = {"int8": (256, 127, 1), "int4": (64, 7, 2)}  # numbers of a block, steps, codes to a byte
DENSE = sorted(set(CODECS) - {"topk"})  # that send every number
FP64 = torch.float64


def rng(draw=0):
    return np.random.default_rng(draw)


def survived(name, values, draw=0):
    codec = CODECS[name]()
    data = codec.encode(values, rng(draw))
    assert data.dtype == torch.uint8
    assert data.shape == (codec.size(len(values)),)
    found = codec.decode(data, len(values), values.dtype)
    assert (found.shape, found.dtype) == (values.shape, values.dtype)
    return found


def numbers(n, seed=0, dtype=torch.float32):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_sizes_are_bits_a_number_and_a_scale_a_block():
    assert [CODECS["fp16"]().size(n) for n in (1, 1000)] == [2, 2000]
    assert [CODECS["bf16"]().size(n) for n in (1, 1000)] == [2, 2000]
    assert [CODECS["int8"]().size(n) for n in (1, 256, 257, 1000)] == [5, 260, 265, 1016]
    assert [CODECS["int4"]().size(n) for n in (1, 64, 65, 1000)] == [5, 36, 41, 564]


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("n", [1, 2, 63, 65, 257])
def test_lengths_that_fill_no_block_survive_and_so_do_zeros(name, n):
    for dtype in (torch.float32, FP64):
        values = numbers(n, dtype=dtype)
        assert (survived(name, values) - values).abs().max() <= values.abs().max() / 7
        assert torch.equal(survived(name, 0 * values), 0 * values)


@pytest.mark.parametrize(("name", "error"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
def test_narrow_numbers_are_the_nearest(name, error):
    values = numbers(10_000)
    found = survived(name, values)
    assert ((found - values).abs() <= error * values.abs()).all()
    assert torch.equal(survived(name, found), found), "which they stay"


@pytest.mark.parametrize("name", BLOCKS)
def test_what_is_a_multiple_of_the_scale_stays(name):
    block, steps, _ = BLOCKS[name]
    rows = torch.arange(3 * block).view(3, block) % (2 * steps + 1) - steps
    rows[:, 5] = steps
    values = (rows * torch.tensor([[1.0], [2.0**-20], [2.0**9]])).view(-1)[:-7]
    assert torch.equal(survived(name, values), values)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_number_goes_to_one_of_its_neighbours_by_chance_and_is_right_on_average(name):
    block, steps, _ = BLOCKS[name]
    row, times = numbers(block, dtype=FP64), 20_000
    scale = row.abs().max() / steps
    found = survived(name, row.repeat(times)).view(times, block) / scale
    lower = (row / scale).floor()
    assert torch.equal(found.round().amin(0), lower)
    assert (found.round().amax(0) <= lower + 1).all()
    share = row / scale - lower  # of those that go up
    deviation = (share * (1 - share) / times).sqrt()
    assert ((found.mean(0) - row / scale).abs() <= 5 * deviation + 1e-5).all()
    assert not torch.equal(survived(name, row, draw=1), survived(name, row, draw=2))


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(name, bad):
    values = numbers(300)
    values[260] = bad
    assert not survived(name, values).isfinite().all()


def test_fp16_has_no_numbers_beyond_65504():
    assert survived("fp16", torch.tensor([65504.0, 65536.0])).tolist() == [65504.0, np.inf]
