"""Rows of noise by their keys are those of their streams, however and wherever they are drawn."""

import importlib
import sys

import pytest
import torch

from fedpart.randomness.noise import Noise, RowNoise
from fedpart.randomness.rows import keys_of, rows
from fedpart.randomness.streams import NoiseKey, generator

KEYS = NoiseKey(2**63 + 5, "train 1", (1, 2, 2**40)), NoiseKey(-7, "psi")


def keys(counts=(9, 4)):
    return torch.cat([torch.from_numpy(keys_of(key, n)) for key, n in zip(KEYS, counts, strict=True)])


@pytest.mark.parametrize("width", [0, 1, 3, 8, 16, 37])
def test_a_row_is_a_part_of_its_stream_in_any_order(width):
    some = [3, 1, 2, 6, 11, 8, 8, 9]
    for key, first in zip(KEYS, (0, 9), strict=True):
        whole = generator(*key[:2], *key.counter, section=5).random((9, width), dtype="float32")
        drawn = rows(keys()[some], 5, width, False)
        for place, row in enumerate(some):
            if first <= row < first + 9 and (first or row < 9):
                assert torch.equal(drawn[place], torch.from_numpy(whole[row - first]))
    for coarse in (True, False):
        assert torch.equal(rows(keys()[some], 5, width, coarse), rows(keys(), 5, width, coarse)[some])


def test_the_gpus_kernel_gives_the_same_bits_and_a_compiler_knows_the_shape_without_drawing(monkeypatch):
    """Triton's interpreter runs it on a CPU."""
    pytest.importorskip("triton", reason="Triton comes with torch on Linux alone")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    name = "fedpart.kernels.triton_philox"
    monkeypatch.setitem(sys.modules, name, None)  # so that what was there is there again afterwards
    del sys.modules[name]
    kernel = importlib.import_module(name)
    some = torch.cat([keys()[[3, 1, 2, 6]], keys((1, 300))])
    for width in (1, 8, 37):
        for coarse in (True, False):
            assert torch.equal(kernel.rows(some, 3, width, coarse), rows(some, 3, width, coarse))
    for coarse, kind in ((True, torch.int16), (False, torch.float32)):
        drawn = rows(torch.empty(4, 6, dtype=torch.int64, device="meta"), 0, 7, coarse)
        assert drawn.is_meta and drawn.shape == (4, 7) and drawn.dtype == kind


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("coarse", [True, False])
def test_vmap_draws_for_every_network_what_it_draws_alone(times, coarse):
    """Also below vmap, where torch's own functions ask for all networks at once."""
    stacked, shape = torch.stack([torch.from_numpy(keys_of(key, 6)) for key in KEYS]), (6, 5)

    def drawn(noise):
        with noise.repeated(times, 6):
            first = noise.uniform(shape, coarse)
        return torch.stack([first, noise.uniform(shape, coarse)])

    noises = []

    def of_one(keys):
        noises.append(RowNoise(keys, torch.float32, None))
        return drawn(noises[0]), noises[0].uniform((3,))

    found, common = torch.func.vmap(of_one)(stacked)
    for key, many, few in zip(KEYS, found, common, strict=True):
        alone = Noise(key)
        assert torch.equal(many, drawn(alone)) and torch.equal(few, alone.uniform((3,)))


def test_below_vmap_a_draw_is_that_of_all_networks():
    stacked = torch.stack([torch.from_numpy(keys_of(key, 6)) for key in KEYS])
    found = []

    class Below(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.bernoulli.p:
                found.append(noise[0].uniform(args[0].shape))
            return func(*args, **(kwargs or {}))

    noise = []

    def of_one(keys):
        noise.append(RowNoise(keys, torch.float32))
        return torch.nn.functional.dropout(torch.ones(6, 4), 0.5) + keys[:, :4]

    with Below():
        torch.func.vmap(of_one, randomness="different")(stacked)
    assert torch.equal(found[0], torch.stack([Noise(key).uniform((6, 4)) for key in KEYS]))
