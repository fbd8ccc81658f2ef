"""torch's own random functions draw from the active noise: reproducibly, and from the right distribution."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpart.randomness.noise import JoinedNoise, Noise, NoiseKey
from fedpart.randomness.redirect import TorchDraws

N = 40_000
ONES = torch.ones(N)
NORMAL = torch.randn(N, 1, 1, generator=torch.Generator().manual_seed(0))


def attention(p=0.3):
    """What is left of weights that are all alike, for values that are 1: shares of kept tokens."""
    tokens = torch.zeros(200, 1, 20, 4)
    return F.scaled_dot_product_attention(tokens, tokens, torch.ones(200, 1, 20, 1), dropout_p=p)


# Name: what is called; mean and variance of its numbers.
DRAWS = {
    "bernoulli": (lambda: torch.bernoulli(0.3 * ONES), 0.3, 0.21),
    "bernoulli of a rate": (lambda: torch.bernoulli(ONES, 0.3), 0.3, 0.21),
    "bernoulli_": (lambda: torch.empty(N).bernoulli_(0.3), 0.3, 0.21),
    "bernoulli_ of a tensor": (lambda: torch.empty(N).bernoulli_(0.3 * ONES), 0.3, 0.21),
    "dropout": (lambda: F.dropout(ONES, 0.3), 1, 0.3 / 0.7),
    "dropout in place": (lambda: F.dropout(ONES.clone(), 0.3, inplace=True), 1, 0.3 / 0.7),
    "Dropout2d": (lambda: nn.Dropout2d(0.3)(torch.ones(200, N // 200, 2, 2))[:, :, 0, 0], 1, 0.3 / 0.7),
    "native_dropout": (lambda: torch.native_dropout(ONES, 0.3, True)[0], 1, 0.3 / 0.7),
    "attention": (attention, 1, 0.3 / 0.7 / 20),
    "rand": (lambda: torch.rand(N), 1 / 2, 1 / 12),
    "rand_like": (lambda: torch.rand_like(ONES), 1 / 2, 1 / 12),
    "uniform_": (lambda: torch.empty(N).uniform_(-1, 5), 2, 3),
    "randn": (lambda: torch.randn(N), 0, 1),
    "randn_like": (lambda: torch.randn_like(ONES), 0, 1),
    "normal_": (lambda: torch.empty(N).normal_(3, 2), 3, 4),
    "normal of numbers": (lambda: torch.normal(3.0, 2.0, (N,)), 3, 4),
    "normal of means": (lambda: torch.normal(3 * ONES, 2.0), 3, 4),
    "normal of deviations": (lambda: torch.normal(3.0, 2 * ONES), 3, 4),
    "normal of both": (lambda: torch.normal(3 * ONES, 2 * ONES), 3, 4),
    "Normal.rsample": (lambda: torch.distributions.Normal(3 * ONES, 2 * ONES).rsample(), 3, 4),
    "exponential_": (lambda: torch.empty(N).exponential_(2.0), 1 / 2, 1 / 4),
    "randint": (lambda: torch.randint(6, (N,)), 2.5, 35 / 12),
    "randint from": (lambda: torch.randint(-2, 4, (N,)), 0.5, 35 / 12),
    "randint_like": (lambda: torch.randint_like(ONES, 6), 2.5, 35 / 12),
    "randint_like from": (lambda: torch.randint_like(ONES, -2, 4), 0.5, 35 / 12),
    "random_ on": (lambda: torch.empty(N, dtype=torch.uint8).random_(56, None), 155.5, (200**2 - 1) / 12),
    "random_": (lambda: torch.empty(N, dtype=torch.uint8).random_(), 127.5, (256**2 - 1) / 12),
    "random_ of booleans": (lambda: torch.empty(N, dtype=torch.bool).random_(), 0.5, 0.25),
    "random_ to": (lambda: torch.empty(N).random_(6), 2.5, 35 / 12),
    "random_ from": (lambda: torch.empty(N).random_(-2, 4), 0.5, 35 / 12),
    "rrelu": (lambda: F.rrelu(-ONES, 0.1, 0.4, training=True), -0.25, 0.09 / 12),
    "rrelu in place": (lambda: F.rrelu_(-ONES, 0.1, 0.4, training=True), -0.25, 0.09 / 12),
    "alpha_dropout": (lambda: F.alpha_dropout(NORMAL, 0.3, training=True), 0, 1),
    "feature_alpha_dropout": (lambda: F.feature_alpha_dropout(NORMAL, 0.3, training=True), 0, 1),
    "gumbel_softmax": (lambda: F.gumbel_softmax(torch.zeros(N, 4), hard=True)[:, 0], 1 / 4, 3 / 16),
}


def drawn(call, key=1):
    with Noise(NoiseKey(key, "test")).active(), TorchDraws() as mode:
        result = call()
    assert mode.drawn
    return result


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_the_key_and_of_nothing_else_and_of_the_right_distribution(name):
    call, mean, variance = DRAWS[name]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = drawn(call)
    assert torch.equal(torch.get_rng_state(), before), "torch's generator has not moved"
    torch.manual_seed(1)
    assert torch.equal(drawn(call), first)
    assert not torch.equal(drawn(call, key=2), first)
    x = first.double().flatten()
    assert abs(x.mean() - mean) < 5 * math.sqrt(variance / len(x))
    squares = (x - mean) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / math.sqrt(len(x)) + 1e-9


@pytest.mark.parametrize("draw", [torch.rand, torch.randn, torch.randperm, partial(torch.randint, 9)])
def test_a_generator_that_is_handed_over_gives_its_own_numbers(draw):
    """A constant that is made in forward() from a seed is the same in every pass, and for every client."""
    size = 5 if draw is torch.randperm else (5,)
    expected = draw(size, generator=torch.Generator().manual_seed(3))
    with Noise(NoiseKey(1, "test")).active(), TorchDraws() as mode:
        assert torch.equal(draw(size, generator=torch.Generator().manual_seed(3)), expected)
        assert not mode.drawn
        assert draw(size, generator=torch.default_generator) is not None and mode.drawn


def test_whole_channels_are_dropped_a_permutation_is_one_and_noise_is_reparametrised():
    x = drawn(lambda: nn.Dropout2d(0.5)(torch.ones(50, 7, 3, 3)))
    channels = x.flatten(2)
    assert torch.equal(channels.amax(-1), channels.amin(-1)) and channels.unique().tolist() == [0, 2]
    orders = drawn(lambda: [torch.randperm(5) for _ in range(1000)])
    assert all(order.sort().values.tolist() == list(range(5)) for order in orders)
    first = torch.bincount(torch.stack(orders)[:, 0], minlength=5)
    assert (first - 200).abs().max() < 5 * math.sqrt(1000 * 0.2 * 0.8)
    assert drawn(lambda: torch.randperm(5, dtype=torch.int32)).dtype == torch.int32
    assert len(drawn(lambda: torch.randperm(0))) == 0
    mean, deviation = (torch.full((50,), value, requires_grad=True) for value in (3.0, 2.0))
    x = drawn(lambda: torch.distributions.Normal(mean, deviation).rsample())
    of_mean, of_deviation = torch.autograd.grad(x.sum(), (mean, deviation))
    assert torch.equal(of_mean, torch.ones(50))
    torch.testing.assert_close(of_deviation, ((x - mean) / deviation).detach())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("low, high", [(0, 2), (0, 1), (1, 2)])
def test_integers_stay_in_their_range_and_cover_it(dtype, low, high):
    for call in (
        lambda: torch.randint(low, high, (100,), dtype=dtype),
        lambda: torch.empty(100, dtype=dtype).random_(low, high),
    ):
        assert drawn(call).long().unique().tolist() == list(range(low, high))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64, torch.float16, torch.bfloat16])
def test_any_integer_fits_its_type(dtype):
    x = drawn(lambda: torch.empty(10_000, dtype=dtype).random_()).double()
    largest = 2 / torch.finfo(dtype).eps if dtype.is_floating_point else torch.iinfo(dtype).max
    most = min(largest, 2**24)
    assert x.isfinite().all() and x.min() >= 0 and 0.9 * most < x.max() <= most


KINDS = torch.bfloat16, torch.float16, torch.float64


@pytest.mark.parametrize("dtype", KINDS)
def test_the_rate_is_kept_in_any_precision(dtype):
    """Compared with numbers of 16 bits, in steps of 1/256, a rate of 10% would be one of 10.2%."""
    count = 1_000_000
    x = drawn(lambda: F.dropout(torch.ones(count, dtype=dtype), 0.1))
    assert x.dtype == dtype
    assert abs((x == 0).double().mean() - 0.1) < 5 * math.sqrt(0.09 / count)


SLOPES = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout2d": lambda x: F.dropout2d(x[None, ..., None], 0.4),
    "native_dropout": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu in place": lambda x: F.rrelu(x * 1, training=True, inplace=True),
}


@pytest.mark.parametrize("name", SLOPES)
def test_gradients_are_those_of_the_mask(name):
    """All of these multiply each number by a factor that was drawn: it is the derivative."""
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = drawn(lambda: SLOPES[name](x))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, (y.view_as(x) / x).detach())
    assert len(gradient.unique()) >= 2
    assert torch.autograd.gradcheck(lambda x: drawn(lambda: SLOPES[name](x)), x)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(p):
    with Noise(NoiseKey(1, "test")).active(), TorchDraws():
        for call in (F.dropout, lambda x, p: torch.native_dropout(x, p, True)[0]):
            assert torch.equal(call(ONES, p), (1 - p) * ONES)
        assert torch.equal(torch.native_dropout(ONES, p, False)[0], ONES)
        assert torch.equal(F.dropout(ONES, 0.5, training=False), ONES)


COMPLEX = torch.ones(3, dtype=torch.complex64)


@pytest.mark.parametrize(
    "name, call",
    [
        ("randn", lambda: torch.randn(3, dtype=torch.complex64)),
        ("rand", lambda: torch.rand(3, dtype=torch.complex128)),
        ("randn_like", lambda: torch.randn_like(COMPLEX)),
        ("bernoulli_", lambda: COMPLEX.clone().bernoulli_(0.3)),
    ],
)
def test_complex_numbers_are_refused(name, call):
    with pytest.raises(ValueError, match=rf"draws complex random numbers with torch's {name}, .*; draw with"):
        drawn(call)
    assert drawn(lambda: torch.rand_like(COMPLEX, dtype=torch.float32)).dtype == torch.float32


@pytest.mark.parametrize(
    "call",
    [
        *(partial(draw, 2, 3, dtype=kind) for draw in (torch.rand, torch.randn) for kind in (None, *KINDS)),
        partial(torch.randint, 5, (3,)),
        partial(torch.randperm, 3),
        partial(torch.rand_like, ONES),
        partial(torch.randn_like, ONES, dtype=torch.float64),
        partial(torch.randint_like, ONES, 5),
    ],
)
def test_numbers_are_where_they_are_asked_for(call):
    for device in ("meta", "cpu"):
        found, plain = drawn(partial(call, device=device)), call(device=device)
        assert found.device.type == device and found.dtype == plain.dtype and found.shape == plain.shape


def test_rows_of_several_batches_are_not_put_in_one_order():
    """Each would be mixed with those of others."""
    parts = [Noise(NoiseKey(k, "test")) for k in range(2)]
    says = r"noise of shape \(5,\), which all examples share, so that clients cannot be computed together"
    with JoinedNoise(parts, [2, 3], 1).active(), TorchDraws():
        assert torch.rand(5).shape == (5,)
        with pytest.raises(ValueError, match=says):
            torch.randperm(5)


@pytest.mark.parametrize(
    "rate, training, draws", [(0.0, True, False), (0.3, False, False), (0.3, True, True)]
)
def test_a_gpus_recurrent_kernel_is_refused_where_it_would_draw(rate, training, draws):
    """It draws below of what can be redirected; here it is asked for shapes alone."""

    def call():
        shapes = (5, 2, 3), (1, 2, 4), (1, 2, 4), (16, 3), (16, 4), (16,), (16,)
        x, hidden, cell, *weights = (torch.empty(shape, device="meta") for shape in shapes)
        kind = (2, 4, 0, 1, False, rate, training, False, [], None)
        return torch.ops.aten._cudnn_rnn(x, weights, 4, None, hidden, cell, *kind)[0]

    with TorchDraws() as mode:
        if draws:
            with pytest.raises(ValueError, match="with torch's _cudnn_rnn"):
                call()
        else:
            assert call().shape == (5, 2, 4)
    assert not mode.drawn


def test_attention_that_drops_nothing_draws_nothing():
    layer = nn.MultiheadAttention(4, 2)
    with Noise(NoiseKey(1, "test")).active(), TorchDraws() as mode:
        attention(p=0.0)
        layer(*[torch.ones(3, 2, 4)] * 3)
        torch.empty(3)
    assert not mode.drawn
