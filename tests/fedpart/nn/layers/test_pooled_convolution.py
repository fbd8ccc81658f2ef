"""A pooled convolution is a convolution, then pooling, however vectors compute it.

Every test runs in all ways that this machine has; one says which these are.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import refusals
import torch
from torch.nn import functional as F

from fedpart.kernels import door
from fedpart.kernels.convolution import on_vectors
from fedpart.nn.layers import PooledConv2d


def two_steps(x, weight, bias):
    return F.relu(F.max_pool2d(F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2), 2))


def channels_last(x):
    """The same numbers, channels side by side, with strides that say so even of one channel."""
    n, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(-1).view(n, height, width, channels).permute(0, 3, 1, 2)


def integers(shape, highest, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-highest, highest + 1, shape, generator=generator).float()


def batch(shape, highest=3, kind=torch.bfloat16, seed=0):
    return channels_last(integers(shape, highest, seed)).to(kind)


def layer_of(weight, bias):
    layer = PooledConv2d(weight.shape[1], weight.shape[0], weight.shape[-1])
    layer.weight.data, layer.bias.data = weight, bias
    return layer


def derivatives(function, x, parameters, gradient):
    """Of the sum of its results, weighted by ``gradient``: results, then derivatives in all that it is of."""
    out = function(x)
    return out, *torch.autograd.grad(out, (x, *parameters), gradient.to(out.dtype))


WAYS = {
    kind: ["two steps", *(["sparse"] if on_vectors.computes(kind, 1, 3) else [])]
    for kind in (torch.bfloat16, torch.float32)
}


class Way:
    """How pooled convolutions are computed, where they may be: ``calls`` says how many have been."""

    def __init__(self, name, monkeypatch):
        self.name, self.calls = name, 0
        forward = on_vectors.forward

        def counted(*args):
            self.calls += 1
            return forward(*args)

        monkeypatch.setattr(on_vectors, "forward", counted)
        if name == "two steps":
            monkeypatch.setattr(on_vectors, "computes", lambda *_: False)


@pytest.fixture(params=WAYS[torch.bfloat16])
def way(request, monkeypatch):
    return Way(request.param, monkeypatch)


def flags():
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def test_vectors_are_used_where_linux_names_them():
    assert ("sparse" in WAYS[torch.bfloat16]) == ("avx512_bf16" in flags())
    assert ("sparse" in WAYS[torch.float32]) == ("avx512f" in flags())


# images, channels, height, width, filters, size; of sixteen cells and filters as many are listed at a time
SHAPES = [
    *((3, 1, 28, 28, 20, 5), (2, 3, 4, 6, 7, 3), (2, 1, 2, 2, 1, 1), (2, 5, 8, 8, 16, 3)),
    *((3, 20, 14, 14, 50, 5), (2, 17, 8, 34, 33, 5), (1, 29, 6, 40, 65, 7), (2, 2, 6, 2, 16, 5)),
    *((2, 1, 6, 12, 40, 3), (1, 1, 4, 36, 32, 9), (1, 32, 2, 18, 1, 1), (1, 32, 8, 6, 3, 7)),
    *((2, 1, 8, 4, 3, 15), (1, 32, 4, 4, 2, 9), (2, 64, 6, 10, 17, 3)),
]
FEW = [(2, 3, 4, 6, 4, 3), SHAPES[0], SHAPES[2]]
KINDS = [(torch.bfloat16, False), (torch.float32, True), (torch.float32, False)]


def cases():
    """Two steps in few shapes, for numba compiles each number of filters anew; vectors in all, every other
    time more images: with 21 these are sixteen at once, and a rest."""
    for place, (kind, autocast) in enumerate(KINDS):
        for name in WAYS[torch.bfloat16 if autocast else kind]:
            for number, shape in enumerate(SHAPES if name == "sparse" else FEW):
                yield shape, 21 * ((number + place) % 2), kind, autocast, name


@pytest.mark.slow
@pytest.mark.parametrize("shape, more, kind, autocast, name", [*cases()], ids=str)
def test_values_ties_and_derivatives_are_those_of_two_steps(monkeypatch, shape, more, kind, autocast, name):
    n, channels, height, width, filters, size = shape
    n += more
    x, bias = integers((n, channels, height, width), 2), integers((filters,), 2, 1)
    weight = integers((filters, channels, size, size), 1, 2)
    gradient = integers((n, filters, height // 2, width // 2), 1, 3)
    parameters = (weight.clone().requires_grad_(), bias.clone().requires_grad_())
    exact = derivatives(lambda x: two_steps(x, *parameters), x.clone().requires_grad_(), parameters, gradient)
    layer, way = layer_of(weight, bias).to(kind), Way(name, monkeypatch)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        ours = derivatives(layer, channels_last(x).to(kind).requires_grad_(), layer.parameters(), gradient)
    precision = torch.bfloat16 if autocast else kind
    assert way.calls == (name == "sparse" and size * channels <= 256)
    assert ours[0].dtype == precision and all(found.dtype == kind for found in ours[1:])
    tolerance = 0 if precision == torch.float32 else 1 / 128
    for found, expected in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.to(precision), expected.to(precision), rtol=tolerance, atol=0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", WAYS, ids=str)
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1, 2, 0), (1, 0, 3, 2)], ids=str)
def test_a_kernel_may_lie_in_memory_in_any_order(kind, order):
    """As in a network in channels-last layout; 96 numbers in a row are whole vectors."""
    x, gradient = integers((2, 32, 4, 6), 1), integers((2, 4, 2, 3), 1, 1)
    weight, bias = integers((4, 32, 3, 3), 1, 2), integers((4,), 2, 3)
    moved = weight.permute(order).contiguous().permute(*np.argsort(order).tolist())
    found, expected = (
        derivatives(layer, channels_last(x).to(kind).requires_grad_(), layer.parameters(), gradient)
        for layer in (layer_of(moved, bias).to(kind), layer_of(weight, bias).to(kind))
    )
    assert moved.stride() != weight.stride() and all(map(torch.equal, found, expected))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WAYS, ids=str)
@pytest.mark.parametrize("bias", [integers((4, 3), 2, 1)[:, 1], torch.ones(()).expand(4)], ids=[0, 1])
def test_a_bias_may_be_a_part_of_something_else(kind, bias):
    """Of float32 images in float32, of bfloat16 under autocast; sixteen are as many as vectors take."""
    weight, x = integers((4, 3, 3, 3), 1), channels_last(integers((16, 3, 4, 6), 2, 2))
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        found = layer_of(weight, bias)(x)
    assert not bias.is_contiguous() and torch.equal(found.float(), two_steps(x, weight, bias))


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", WAYS, ids=str)
def test_images_may_be_a_part_of_others_and_gradients_one_number(kind):
    layer = layer_of(integers((4, 3, 3, 3), 1), integers((4,), 2, 1)).to(kind)
    part = batch((1, 3, 6, 10), 2, kind, 2)[..., 1:9]
    gradient = torch.ones(()).expand(1, 4, 3, 4)
    found, expected = (
        derivatives(layer, x.detach().requires_grad_(), layer.parameters(), gradient)
        for x in (part, channels_last(part))
    )
    assert not part.permute(0, 2, 3, 1).is_contiguous() and all(map(torch.equal, found, expected))


ON_VECTORS = pytest.mark.parametrize("kind", [k for k, ways in WAYS.items() if "sparse" in ways], ids=str)


@ON_VECTORS
def test_what_an_image_lists_is_not_added_to_the_next_one(kind):
    """32 cells and 32 filters are kept of the first image; of the second all but the first of each.

    So its lists are one shorter, and end with sixteen that are kept at once.
    """
    layer = layer_of(torch.ones(32, 1, 3, 3), torch.tensor([0.0] + [99.0] * 31))
    x, gradient = torch.ones(2, 1, 8, 16), torch.ones(2, 32, 4, 8)
    x[1], x[1, 0, :2, :2] = -1, -99
    expected = derivatives(layer, x.requires_grad_(), layer.parameters(), gradient)
    assert (expected[0] == 0).sum() == 32 + 31
    x = channels_last(x.detach()).to(kind).requires_grad_()
    found = derivatives(layer.to(kind), x, layer.parameters(), gradient)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs.to(kind))


def kept(x, weight, bias, like):
    """Of each four pixels of a convolution the one that is the maximum in ``like``, if that is positive."""
    found = F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)
    largest, places = F.max_pool2d(like, 2, return_indices=True)
    return found.flatten(2).gather(2, places.flatten(2)).view_as(largest) * (largest > 0)


@pytest.mark.slow
def test_sums_are_of_single_precision(way):
    """Derivatives in parameters are those that double precision finds; two steps round them to 16 bits.

    Two steps round before they pool: then another pixel may be the first maximum. They are torch's own, whose
    sums have 16 bits where a processor has no instructions for these.
    """
    torch.manual_seed(0)
    x, gradient = (torch.randn(shape).to(torch.bfloat16) for shape in ((40, 20, 14, 14), (40, 50, 7, 7)))
    layer = layer_of(torch.randn(50, 20, 5, 5).to(torch.bfloat16).float() / 16, torch.randn(50))
    weight, bias = (parameter.detach().double().requires_grad_() for parameter in layer.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        ours = derivatives(layer, channels_last(x).requires_grad_(), layer.parameters(), gradient)
        rounded = F.conv2d(channels_last(x), *layer.parameters(), padding=2).double()
    like = rounded if way.name == "two steps" else F.conv2d(x.double(), weight, bias, padding=2)
    like, wide = like.detach(), x.double().requires_grad_()
    exact = derivatives(lambda x: kept(x, weight, bias, like), wide, (weight, bias), gradient)
    digits_of = (8, 8, 16, 16)
    if way.name == "two steps":
        digits_of = (8, 8, 8, 8) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else (8, 5, 5, 5)
    for found, expected, digits in zip(ours, exact, digits_of, strict=True):
        error = (found.double() - expected).abs() / expected.abs().max()
        assert error.max() < 2**-digits


@pytest.mark.slow
def test_of_two_nearest_numbers_the_even_one_is_found(way):
    """From 256 on bfloat16 has even numbers only, from 512 on every fourth."""
    layer = layer_of(torch.ones(4, 2, 1, 1), torch.zeros(4)).to(torch.bfloat16)
    x, last = torch.full((1, 2, 2, 512), 256.0), torch.arange(256.0).repeat_interleave(2)
    x[:, 1] = last
    x = channels_last(x).to(torch.bfloat16).requires_grad_()
    out = layer(x)
    assert torch.equal(out[0, :, 0], (256 + last[::2]).to(torch.bfloat16).expand(4, -1))
    out.backward(out.detach())
    assert torch.equal(x.grad[0, :, 0, ::2], 4 * out[0, :2, 0].detach())


@pytest.mark.quick(1)
@pytest.mark.parametrize("images", [2, 24])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so_and_in_its_image(way, value, images):
    layer = layer_of(torch.ones(4, 3, 1, 1), torch.zeros(4)).to(torch.bfloat16)
    x = batch((images, 3, 8, 8), 2)
    expected = layer(x)
    x[0, 1, 3, 2] = value
    found = layer(x)
    assert not found[0, :, 1, 1].isfinite().any() and torch.equal(found[1:], expected[1:])


@ON_VECTORS
@pytest.mark.parametrize("channels", [5, 6, 12])  # 6 in float32, 12 in bfloat16: two rows lie side by side
def test_sparse_gradients_that_are_not_finite_stay_where_the_kernel_reaches(kind, channels, monkeypatch):
    weight, way = integers((3, channels, 3, 3), 1), Way("sparse", monkeypatch)
    layer, gradient = layer_of(weight, torch.full((3,), 99.0)), integers((2, 3, 4, 5), 1, 1)
    x = channels_last(integers((2, channels, 8, 10), 1)).requires_grad_()
    gradient[0, 1, 2, 3] = torch.inf
    exact = derivatives(lambda x: two_steps(x, *layer.parameters()), x, layer.parameters(), gradient)
    x = x.detach().to(kind).requires_grad_()
    ours = derivatives(layer.to(kind), x, layer.parameters(), gradient)
    assert way.calls and not ours[1].isfinite().all()
    assert all(torch.equal(a.isfinite(), b.isfinite()) for a, b in zip(ours, exact, strict=True))


@pytest.mark.slow
def test_a_bias_that_is_not_a_number_stays_so_whatever_its_bits(way):
    bias = torch.tensor([-1, 2**31 - 1] * 2, dtype=torch.int32).view(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer_of(torch.ones(4, 1, 1, 1), bias)(channels_last(torch.ones(1, 1, 2, 2))).isnan().all()


@pytest.mark.slow
def test_derivatives_that_nobody_asks_for_are_not_computed(way, monkeypatch):
    computed = []
    for name in ("of_images", "of_parameters"):
        function = getattr(on_vectors, name)
        noted = lambda *args, n=name, f=function: computed.append(n) or f(*args)  # noqa: E731
        monkeypatch.setattr(on_vectors, name, noted)
    x, layer = batch((2, 1, 4, 4), 2), PooledConv2d(1, 4, 3).bfloat16()
    layer(x).sum().backward()
    of_parameters, computed[:] = list(computed), []
    layer.requires_grad_(False)(x.requires_grad_()).sum().backward()
    expected = (["of_parameters"], ["of_images"]) if way.name == "sparse" else ([], [])
    assert (of_parameters, computed) == expected and layer.weight.grad.any() and x.grad.any()


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "x, sides",
    [
        (batch((2, 2, 4, 6)).double(), (5, 5)),
        (batch((2, 2, 4, 6)).contiguous(), (5, 5)),
        (batch((2, 2, 5, 6)), (5, 5)),
        (batch((2, 2, 6, 5)), (5, 5)),
        (batch((2, 2, 4, 6))[:0], (5, 5)),
        (batch((2, 2, 4, 6))[0], (5, 5)),
        (batch((2, 52, 4, 6)), (5, 5)),
        *((batch((2, 2, 8, 6)), sides) for sides in ((4, 4), (3, 5), (5, 3), (17, 17))),
    ],
    ids=[
        *("float64", "default layout", "odd height", "odd width", "none", "one image", "many channels"),
        *("even sides", "3 times 5", "5 times 3", "sums beyond the registers"),
    ],
)
def test_other_images_and_kernels_are_computed_in_two_steps(way, x, sides):
    layer = layer_of(integers((4, x.shape[-3], *sides), 2).to(x.dtype), integers((4,), 2).to(x.dtype))
    out = layer(x)
    assert torch.equal(out, two_steps(x, layer.weight, layer.bias)) and not way.calls
    out.sum().backward()
    assert layer.weight.grad.any() == (len(out) > 0)


def test_with_several_threads_without_numba_and_under_vmap_there_are_two_steps(way, monkeypatch):
    layer = layer_of(integers((4, 1, 5, 5), 2), integers((4,), 2)).to(torch.bfloat16)
    x = batch((6, 1, 4, 6))
    expected = two_steps(x, layer.weight, layer.bias)
    stacked = x.permute(0, 2, 3, 1).reshape(2, 3, 4, 6, 1).permute(0, 1, 4, 2, 3)
    assert torch.equal(torch.func.vmap(layer)(stacked).flatten(0, 1), expected)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 2)
        assert torch.equal(layer(x), expected)
    monkeypatch.setattr(door, "compiles", lambda: False)
    assert torch.equal(layer(x), expected) and not way.calls
    layer, x = PooledConv2d(3, 4, 5).double(), channels_last(integers((2, 3, 4, 6), 2).double())
    with torch.autocast("cpu", torch.bfloat16):  # which leaves double precision as it is
        assert torch.equal(layer(x), two_steps(x, layer.weight, layer.bias))


@pytest.mark.parametrize("height, width, fits", [(4, 4, True), (6, 4, False), (8, 2, False)])
def test_large_images_are_computed_in_two_steps(way, monkeypatch, height, width, fits):
    """With the room around them: narrow ones need more of it."""
    monkeypatch.setattr(door, "_LARGE", 2 * 9 * 9)
    layer = layer_of(integers((4, 2, 5, 5), 2), integers((4,), 2)).to(torch.bfloat16)
    layer(batch((2, 2, height, width)))
    assert way.calls == (fits and way.name != "two steps")


def test_what_a_convolution_refuses_is_refused(way):
    """Other channels than the kernel's, another precision, and biases beyond whose end kernels would read."""
    rows = []
    for channels, kind in ((1, torch.bfloat16), (5, torch.bfloat16), (3, torch.float32)):
        layer, x = PooledConv2d(3, 4, 5).to(kind), channels_last(integers((2, channels, 4, 6), 2))
        rows.append((f"{channels} {kind}", layer, x.to(torch.bfloat16), "channels|should be the same"))
    images = batch((16, 3, 4, 6), 2)
    for shape in ((3,), (5,), (), (4, 1)):
        layer = layer_of(integers((4, 3, 5, 5), 1), torch.zeros(shape)).to(torch.bfloat16)
        rows.append((f"a bias {shape}", layer, images, "bias"))
    refusals.check((what, partial(layer, x), RuntimeError, says) for what, layer, x, says in rows)


def test_a_bias_by_itself_or_a_kernel_that_is_no_parameter_may_be_mapped_over(way):
    """As ``torch.nn.utils.weight_norm`` sets it."""
    layer = layer_of(integers((4, 3, 5, 5), 1), integers((4,), 2)).to(torch.bfloat16)
    x, biases = batch((2, 3, 4, 6), 2), integers((3, 4), 2, 1).bfloat16()
    found = torch.func.vmap(lambda bias: torch.func.functional_call(layer, {"bias": bias}, x))(biases)
    expected = [two_steps(x.float(), layer.weight.float(), bias.float()) for bias in biases]
    assert torch.equal(found, torch.stack(expected).to(torch.bfloat16))
    kernels = integers((3, 4, 3, 5, 5), 1).bfloat16()
    del layer.weight

    def mapped(kernel):
        layer.weight = kernel
        return layer(x)

    expected = [two_steps(x, kernel, layer.bias) for kernel in kernels]
    assert torch.equal(torch.func.vmap(mapped)(kernels), torch.stack(expected))


def test_a_second_derivative_is_an_error_and_not_zero(way):
    """The derivative in the images depends on the weights; two steps know how."""
    x = batch((2, 3, 4, 6), 2).requires_grad_()
    layer = PooledConv2d(3, 4, 5).to(x.dtype)
    (found,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    if way.name == "two steps":
        found.sum().backward()
        assert layer.weight.grad.any()
    else:
        with pytest.raises(RuntimeError, match="once_differentiable"):
            found.sum().backward()
