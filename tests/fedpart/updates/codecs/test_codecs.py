"""Codecs by themselves: what they make of numbers, in how many bytes, and what they refuse."""

import math
import re
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import refusals
import torch
from flower_experiment import CLIENTS, build
from inprocess_grid import InProcessGrid
from problems import chain_net, settings, shards
from tiny import tiny

from fedpart import ClientError, Federation, Task, federate
from fedpart.flower.client import make_client_app
from fedpart.flower.strategy import FedPart
from fedpart.updates.codecs import CODECS
from fedpart.updates.codecs.topk import TopK
from simulations.errors import ConfigError
from simulations.running.run import run_experiment

BLOCKS = {"int8": (256, 127, 1), "int4": (64, 7, 2)}  # numbers of a block, steps, codes to a byte
DENSE = sorted(set(CODECS) - {"topk"})  # that send every number
FP64 = torch.float64


def rng(draw=0):
    return np.random.default_rng(draw)


def survived(codec, values, draw=0):
    codec = CODECS[codec]() if isinstance(codec, str) else codec
    data = codec.encode(values, rng(draw))
    assert (data.dtype, data.shape) == (torch.uint8, (codec.size(len(values)),))
    decoded = codec.decode(data, len(values), values.dtype)
    assert (decoded.shape, decoded.dtype) == (values.shape, values.dtype)
    return decoded


def numbers(n, seed=0, dtype=torch.float32):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_bytes_are_bits_a_number_and_a_scale_a_block_and_of_topk_values_and_places():
    sizes = {name: [CODECS[name]().size(n) for n in (1, 65, 257, 1000)] for name in DENSE}
    assert sizes["fp16"] == sizes["bf16"] == [2, 130, 514, 2000]
    assert sizes["int8"] == [5, 69, 265, 1016] and sizes["int4"] == [5, 41, 149, 564]
    # n = 1000, k = 10: l = 6, 10 * 6 + 10 + (999 >> 6) = 85 bits
    assert TopK(0.01).size(1000) == 10 * 4 + math.ceil(85 / 8)
    assert TopK(0.01, "fp16").size(1000) == 10 * 2 + math.ceil(85 / 8)
    assert TopK(0.01, "int8").size(1000) == 10 + 4 + math.ceil(85 / 8)
    assert TopK(1.0).size(1000) == 4000 + math.ceil((1000 + 999) / 8)
    n, k = 10**6, 10**4
    least = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2) / 8
    places = TopK(0.01).size(n) - 4 * k
    assert least < places < 1.07 * least < 4 * k / 3


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


@pytest.mark.parametrize("codec", [*sorted(CODECS), TopK(0.001)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(codec, bad):
    values = numbers(300)
    values[260] = bad
    assert not survived(codec, values).isfinite().all()


def test_of_known_vectors_the_largest_stay_and_fp16_has_no_numbers_beyond_65504():
    assert survived("fp16", torch.tensor([65504.0, 65536.0])).tolist() == [65504.0, np.inf]
    values = torch.tensor([0.5, -3.0, 0.0, 2.0, -0.25, 1.0, -1.5, 0.125])
    assert survived(TopK(0.25), values).tolist() == [0, -3, 0, 2, 0, 0, 0, 0]
    assert survived(TopK(0.5), values).tolist() == [0, -3, 0, 2, 0, 1, -1.5, 0]
    assert torch.equal(survived(TopK(1.0), values), values)
    assert survived(TopK(1e-9), values).tolist() == [0, -3, 0, 0, 0, 0, 0, 0], "one at least"


NUMBERS, SHARES = (1, 2, 7, 64, 101, 1000, 4097), (0.001, 0.01, 0.1, 0.25, 0.3, 0.5, 0.7, 1.0)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("n", NUMBERS)
def test_wherever_they_are_and_however_many(n, share):
    codec, values = TopK(share), numbers(n)
    k = max(1, round(share * n))
    kept = values.abs() >= values.abs().sort(descending=True).values[k - 1]
    assert torch.equal(survived(codec, values), values * kept)
    for at_one_end in (torch.arange(n), torch.arange(n).flip(0)):
        assert torch.equal(survived(codec, at_one_end.float()), at_one_end * (at_one_end >= n - k))


@pytest.mark.parametrize("inner", ["fp16", "bf16", "int8", "int4"])
def test_the_values_may_be_coded_themselves(inner):
    values = numbers(1000)
    found, exact = survived(TopK(0.1, inner), values), survived(TopK(0.1), values)
    assert ((found - exact).abs() <= exact.abs().max() / 7 * (exact != 0)).all()
    assert not torch.equal(found, exact)


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
    codec = TopK(0.1)
    data = codec.encode(numbers(100), rng())
    bits = np.unpackbits(data[40:].numpy(), bitorder="little")  # behind ten numbers in single precision
    change(bits)
    data[40:] = torch.from_numpy(np.packbits(bits, bitorder="little"))
    with pytest.raises(ValueError, match=re.escape(says)):
        codec.decode(data, 100, torch.float32)


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
    for _ in range(2000):
        data = torch.from_numpy(draw.integers(0, 256, codec.size(5), dtype=np.uint8))
        data[:8] = torch.tensor([1.0, -2.0]).view(torch.uint8)
        try:
            found = codec.decode(data, 5, torch.float32)
        except ValueError:
            continue
        read += 1
        assert torch.equal(codec.encode(found, rng()), data)
    assert read > 50


FED_BACK = {"upload": "topk", "upload_options": {"share": 0.1}, "error_feedback": True}


def bad_blocks(name, block, steps, codes):
    """Messages that no encoder of blocks makes, each with what is said of it; ``codes``: to a byte."""
    codec, n = CODECS[name](), 3 * block + 1
    good = codec.encode(torch.randn(n, generator=torch.Generator().manual_seed(0)), np.random.default_rng(0))
    scales, below, behind = good.clone(), good.clone(), good.clone()
    scales[: 4 * 4].view(torch.float32)[2] *= -1
    below[4 * 4 + 20] = 128 if codes == 1 else 15 << 4  # -128; 0, which stands for -8
    behind[-1] |= 1 << 4
    bad = [(scales, "a block has a scale below 0"), (below, f"a code is below -{steps}")]
    bad += [(behind, "bits behind the last code are not 0")] if codes == 2 else []
    return [(f"{name}: {says}", partial(codec.decode, data, n, torch.float32), says) for data, says in bad]


def test_options_and_bytes_that_no_encoder_makes():
    shares = [0, -0.1, 1.5, math.nan, math.inf]
    rows = [(f"a share of {share}", partial(TopK, share), "above 0 and at most 1, got") for share in shares]
    unknown = [
        ({"values": "int9"}, "Unknown upload codec 'int9'"),
        ({"k": 3}, "The upload codec 'topk' does not take the options {'k': 3}"),
        ({"share": "much"}, "The upload codec 'topk' cannot be made with the options"),
    ]
    rows += [(str(options), partial(CODECS.make, "topk", options), says) for options, says in unknown]
    rows.append(
        ("int9", lambda: settings(4, upload="int9"), "Unknown upload codec 'int9': did you mean 'int")
    )
    rows += [*bad_blocks("int8", 256, 127, 1), *bad_blocks("int4", 64, 7, 2)]
    refusals.check((*row, ValueError, says) for *row, says in rows)


def run(rounds, folder, **options):
    data = shards([4, 7, 3, 9, 5, 6, 2, 8])
    federate(Task(chain_net()), data, rounds=rounds, checkpoint=folder / "run.pt", **FED_BACK, **options)


@pytest.mark.slow
def test_error_feedback(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    config = {"upload": "topk", "share": 0.1, "error_feedback": True}
    grid = InProcessGrid(make_client_app(build), CLIENTS, config)
    homeless = partial(FedPart(Federation(build(config).protocol)).run, grid, 4)
    clustered = partial(run_experiment, tiny(engine="ray", **FED_BACK), tmp_path / "clustered")
    run(3, tmp_path)
    for file in tmp_path.glob("run.residuals/*/*/*.pt"):
        file.unlink()
    resumed = partial(run, 6, tmp_path, resume=True)
    gone = r"what the client has kept of round \d cannot be read"
    no_folder = r"give make_client_app\(\) a folder for it, with keep="
    refusals.check(
        [
            ("what was kept is gone", resumed, ClientError, gone),
            ("clients without a folder", homeless, ClientError, no_folder),
            (
                "a cluster",
                clustered,
                ConfigError,
                "actors of a Ray cluster do not find them; unset RAY_ADDRESS",
            ),
        ]
    )
