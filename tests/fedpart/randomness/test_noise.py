"""Random numbers as a function of their key."""

import numpy as np
import pytest
import torch

import fedpart
from fedpart.randomness import streams as rng
from fedpart.randomness.noise import JoinedNoise, Noise, NoiseKey, coarse_numbers
from fedpart.randomness.streams import draw, generator, state_of


def numbers(*counter, seed=0, purpose="test", shape=(1000,), **options):
    return Noise(NoiseKey(seed, purpose, counter), **options).uniform(shape)


@pytest.mark.parametrize(
    "other",
    [
        {"counter": (1, 2, 4)},
        {"counter": (2, 2, 3)},
        {"counter": (3, 2, 1)},
        {"counter": (1, 2)},
        {"counter": (1, 2, 3), "seed": 1},
        {"counter": (1, 2, 3), "purpose": "text"},
    ],
)
def test_other_key_other_numbers(other):
    first, second = numbers(1, 2, 3), numbers(*other.pop("counter"), **other)
    assert (first != second).double().mean() > 0.99
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.15


def test_draws_repeat_whatever_their_precision_and_further_rows_leave_all_others_as_they_are():
    noise = Noise(NoiseKey(0, "test"))
    with noise.active():
        first, second = noise.uniform((50,)), noise.uniform((50,))
    with noise.active():
        again = noise.uniform((50,)), noise.uniform((50,))
    assert not torch.equal(first, second)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    # Padding a batch changes no number of the rows that were there, in any draw.
    short, padded = Noise(NoiseKey(0, "test")), Noise(NoiseKey(0, "test"))
    for width in (3, 7):
        assert torch.equal(short.uniform((5, width)), padded.uniform((8, width))[:5])
    wide = numbers(dtype=torch.float64)
    assert wide.dtype == torch.float64 and torch.equal(wide.float(), numbers())
    assert numbers(shape=()).shape == () and 0 < numbers(shape=()) < 1
    torch.manual_seed(0)
    first = fedpart.uniform((4,), torch.zeros(1))
    torch.manual_seed(0)
    assert torch.equal(first, fedpart.uniform((4,), torch.zeros(1)))
    assert not torch.equal(first, fedpart.uniform((4,), torch.zeros(1)))


def test_images_can_be_drawn_with_channels_next_to_each_other_in_memory():
    shape = (4, 3, 5, 2)
    noise = Noise(NoiseKey(0, "test", (1,)))
    with noise.active(channels_last=True):
        images, rest = noise.uniform(shape), noise.uniform((7, 3))
    with noise.active():
        plain, same = noise.uniform(shape), noise.uniform((7, 3))
    assert images.shape == shape and images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images.permute(0, 2, 3, 1).reshape(-1), plain.reshape(-1))
    assert torch.equal(rest, same)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("explicit", [True, False])
def test_open_interval(dtype, explicit):
    """Never 0 nor 1, so that logit and ndtri stay finite; the largest draw would round to 1."""
    like = torch.zeros(1, dtype=dtype)

    def ones(out, key, start):
        out[:] = 1 - 2.0**-24

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpart.randomness.noise.draw", ones)
        patch.setattr(torch, "rand", lambda shape, **o: torch.full(shape, 1 - 2.0**-24, **o))
        if explicit:
            with Noise(NoiseKey(0, "test"), dtype=torch.promote_types(dtype, torch.float32)).active():
                top, bell = fedpart.uniform((3,), like), fedpart.normal((3,), like)
        else:
            top, bell = fedpart.uniform((3,), like), fedpart.normal((3,), like)
    assert top.dtype == bell.dtype == dtype
    assert (top < 1).all() and bell.isfinite().all() and (bell > 4).all()


def test_distributions():
    with Noise(NoiseKey(0, "test")).active():
        u = fedpart.uniform((100_000,), torch.zeros(1))
        z = fedpart.normal((100_000,), torch.zeros(1))
    assert u.min() > 0 and u.max() < 1
    assert u.mean().item() == pytest.approx(0.5, abs=0.004)
    assert u.var().item() == pytest.approx(1 / 12, abs=0.001)
    assert z.mean().item() == pytest.approx(0, abs=0.015) and z.std().item() == pytest.approx(1, abs=0.01)
    assert z.abs().gt(1.96).double().mean().item() == pytest.approx(0.05, abs=0.003)


def test_shared_rows():
    noise = Noise(NoiseKey(0, "test"))
    with noise.repeated(3, rows=6):
        rows, channels = noise.uniform((6, 4)), noise.uniform((5,))
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[3])
    assert channels.unique().numel() == 5
    assert noise.uniform((6,)).unique().numel() == 6  # only inside


def test_streams_do_not_overlap_and_their_numbers_are_frozen():
    """A stream's own words are the lowest of the counter; its sections lie 2**35 numbers apart."""
    whole = generator(0, "test").random(64, dtype="float32")
    assert not np.isin(generator(0, "test", 1).random(64, dtype="float32"), whole).any()
    assert not np.isin(generator(0, "test", section=1).random(64, dtype="float32"), whole).any()
    advanced = generator(0, "test")
    advanced.bit_generator.advance(2**32)
    assert np.array_equal(advanced.random(8), generator(0, "test", section=1).random(8))
    assert generator(-1, "test").random() == generator(2**64 - 1, "test").random()
    with pytest.raises(ValueError, match="at most three counters, got 4"):
        generator(0, "test", 1, 2, 3, 4)
    # Streams are part of the contract: a resumed run and a mixed federation rely on them.
    drawn = [round(float(x), 6) for x in generator(1, "frozen", 2, 3).random(3)]
    assert drawn == [0.960999, 0.120062, 0.423476]
    single = numbers(2, 3, seed=1, purpose="frozen", shape=(2,))
    assert single.tolist() == pytest.approx([0.449137, 0.960999], abs=1e-6)


def test_coarse_numbers_are_their_bits_uniform_and_inside_whatever_these_are():
    draw = Noise(NoiseKey(0, "coarse")).uniform((401, 997), coarse=True)
    steps = draw.double() * 2**16 - 0.5
    assert torch.equal(steps, steps.round()) and steps.min() >= 0 and steps.max() <= 2**16 - 1
    assert len(draw.unique()) > 0.99 * 2**16
    assert abs(draw.mean() - 0.5) < 5 * (1 / 12 / draw.numel()) ** 0.5
    assert draw.double().var().item() == pytest.approx(1 / 12, rel=0.01)
    counts = torch.histc(draw, 64, 0, 1)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 63 + 5 * (2 * 63) ** 0.5
    fewer = Noise(NoiseKey(0, "coarse")).uniform((7, 997), coarse=True)
    assert torch.equal(fewer, draw[:7])
    assert torch.logit(torch.tensor([2.0**-17, 1 - 2.0**-17])).isfinite().all()
    numbers, bits = Noise(NoiseKey(0, "coarse"), dtype=torch.float64), Noise(NoiseKey(0, "coarse"))
    for shape in ((5, 3), (7,), ()):
        drawn = bits.bits(shape)
        assert drawn.dtype == torch.int16
        assert torch.equal(numbers.uniform(shape, coarse=True), coarse_numbers(drawn).double())


@pytest.mark.parametrize("section", [0, 3])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 2048, 2049, 5001])
def test_bits_are_the_streams_words(size, section, monkeypatch):
    key = (-5, "test", 2**63, 7)
    words = generator(*key, section=section).integers(2**64, size=size, dtype=np.uint64)
    expected = words.astype("<u8").view("<i2")[:size]
    for kernel in (rng.random_bits_kernel, lambda: None):
        monkeypatch.setattr(rng, "random_bits_kernel", kernel)
        out = np.empty(size, np.int16)
        draw(out, *state_of(*key[:2], key[2:], section))
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("shared, shape", [(1, (3,)), (2, (3, 5, 4)), (2, ())], ids=str)
def test_noise_of_joined_batches_is_that_of_each(shared, shape):
    def parts():
        return [Noise(NoiseKey(0, "test", (client,))) for client in range(3)]

    rows, padding = [2, 5, 1], 1
    joined, alone = JoinedNoise(parts(), rows, 2, padding), parts()
    whole = (2 * (sum(rows) + padding), *shape)
    with joined.repeated(shared, whole[0]), joined.active(channels_last=True):
        found = [joined.uniform(whole, coarse) for coarse in (True, False, True)]
    for part, count in zip(alone, rows, strict=True):
        part.rewind(channels_last=True)
        with part.repeated(shared, 2 * count):
            expected = [part.uniform((2 * count, *shape), coarse) for coarse in (True, False, True)]
        for i, one in enumerate(expected):
            assert torch.equal(found[i][: 2 * count], one)
            found[i] = found[i][2 * count :]
    assert all(len(rest) == 2 * padding for rest in found)
    with pytest.raises(ValueError, match=r"shape \(3,\), which all examples share"):
        joined.bits((3,))
