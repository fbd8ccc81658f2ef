"""topk by itself: what is sent of known numbers, in how many bytes, and what is no such message."""

import math
import re
from contextlib import suppress

import numpy as np
import pytest
import torch

from fedpart.updates.codecs.topk import TopK

NUMBERS, SHARES = (1, 2, 7, 64, 101, 1000, 4097), (0.001, 0.01, 0.1, 0.25, 0.3, 0.5, 0.7, 1.0)


def rng(draw=0):
    return np.random.default_rng(draw)


def numbers(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def survived(codec, values):
    data = codec.encode(values, rng())
    assert (data.dtype, data.shape) == (torch.uint8, (codec.size(len(values)),))
    return codec.decode(data, len(values), values.dtype)


def test_of_a_known_vector_the_largest_stay_and_the_others_are_zero():
    values = torch.tensor([0.5, -3.0, 0.0, 2.0, -0.25, 1.0, -1.5, 0.125])
    assert survived(TopK(0.25), values).tolist() == [0, -3, 0, 2, 0, 0, 0, 0]
    assert survived(TopK(0.5), values).tolist() == [0, -3, 0, 2, 0, 1, -1.5, 0]
    assert torch.equal(survived(TopK(1.0), values), values)
    assert survived(TopK(1e-9), values).tolist() == [0, -3, 0, 0, 0, 0, 0, 0], "one at least"


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("n", NUMBERS)
def test_wherever_they_are_and_however_many(n, share):
    codec, values = TopK(share), numbers(n)
    k = max(1, round(share * n))
    kept = values.abs() >= values.abs().sort(descending=True).values[k - 1]
    assert torch.equal(survived(codec, values), values * kept)
    for at_one_end in (torch.arange(n), torch.arange(n).flip(0)):
        assert torch.equal(survived(codec, at_one_end.float()), at_one_end * (at_one_end >= n - k))


def test_bytes_are_the_values_and_their_places_and_close_to_what_any_code_takes():
    # n = 1000, k = 10: l = 6, 10 * 6 + 10 + (999 >> 6) = 85 bits
    assert TopK(0.01).size(1000) == 10 * 4 + math.ceil(85 / 8)
    assert TopK(0.01, "fp16").size(1000) == 10 * 2 + math.ceil(85 / 8)
    assert TopK(0.01, "int8").size(1000) == 10 + 4 + math.ceil(85 / 8)
    assert TopK(1.0).size(1000) == 4000 + math.ceil((1000 + 999) / 8)
    n, k = 10**6, 10**4
    least = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2) / 8
    places = TopK(0.01).size(n) - 4 * k
    assert least < places < 1.07 * least < 4 * k / 3


@pytest.mark.parametrize("inner", ["fp16", "bf16", "int8", "int4"])
def test_the_values_may_be_coded_themselves(inner):
    values = numbers(1000)
    found, exact = survived(TopK(0.1, inner), values), survived(TopK(0.1), values)
    assert ((found - exact).abs() <= exact.abs().max() / 7 * (exact != 0)).all()
    assert not torch.equal(found, exact)


def test_what_is_not_finite_is_among_the_largest():
    for bad in (np.nan, np.inf, -np.inf):
        values = numbers(300)
        values[7] = bad
        assert not survived(TopK(0.001), values).isfinite().all()


def bits(data, values):
    """The bits behind ``values`` numbers in single precision, to be changed."""
    return np.unpackbits(data.numpy()[4 * values :], bitorder="little")


def with_bits(data, values, changed):
    packed = torch.from_numpy(np.packbits(changed, bitorder="little"))
    return torch.cat([data[: 4 * values], packed])


@pytest.mark.parametrize(
    ("change", "says"),
    [  # of n = 100, k = 10: l = 3; bits 0..29 are lower ones, 30..51 the upper string (10 + 12), then 4 of 0
        (lambda b: b[52:].fill(1), "bits behind the last place are not 0"),
        (lambda b: b[30:52].fill(0), "it has 0 places where 10 numbers are sent"),
        (lambda b: b[30:52].fill(1), "it has 22 places where 10 numbers are sent"),
        (lambda b: (b[:52].fill(0), b[30:40].fill(1)), "places do not ascend"),
        (lambda b: (b[:30].fill(1), b[30:42].fill(0), b[42:52].fill(1)), "a place is beyond the 100 numbers"),
    ],
)
def test_places_that_no_encoder_makes_are_refused(change, says):
    codec, values = TopK(0.1), numbers(100)
    good = codec.encode(values, rng())
    changed = bits(good, 10)
    assert torch.equal(with_bits(good, 10, changed), good)
    change(changed)
    with pytest.raises(ValueError, match=re.escape(says)):
        codec.decode(with_bits(good, 10, changed), 100, torch.float32)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05])
def test_whatever_it_is_sent_a_server_asks_for_no_more_memory_than_a_partition_takes(share):
    codec, n = TopK(share), 100_000
    size = codec.size(n)
    sent = [codec.encode(numbers(n), rng()), torch.full((size,), 255, dtype=torch.uint8)]
    sent += [torch.from_numpy(rng(i).integers(0, 256, size, dtype=np.uint8)) for i in range(3)]
    for data in sent:
        with torch.autograd.profiler.profile(profile_memory=True) as watched, suppress(ValueError):
            codec.decode(data, n, torch.float32)
        most = max(event.cpu_memory_usage for event in watched.function_events)
        assert size <= most <= 4 * n


def test_no_two_messages_say_the_same():
    """Every message that is read is the one that an encoder makes of what is read."""
    codec, draw, read = TopK(0.4), rng(), 0
    for _ in range(4000):
        data = torch.from_numpy(draw.integers(0, 256, codec.size(5), dtype=np.uint8))
        data[:8] = torch.tensor([1.0, -2.0]).view(torch.uint8)
        try:
            found = codec.decode(data, 5, torch.float32)
        except ValueError:
            continue
        read += 1
        assert torch.equal(codec.encode(found, rng()), data)
    assert read > 50
