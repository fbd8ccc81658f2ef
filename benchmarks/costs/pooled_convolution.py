"""The MNIST CNN's convolutions with their pooling: our layer, and PyTorch's convolution with our pooling.

``python -m benchmarks.costs.pooled_convolution``: milliseconds for 500 images of noise on one
thread, pass by pass in turn, medians of 20.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.script import seconds
from fedpart.kernels import keep_freed_memory
from fedpart.nn.layers.pooled_convolution import PooledConv2d
from fedpart.nn.layers.pooling import max_pool_relu

IMAGES, PASSES, WARMUP = 500, 20, 2
LAYERS = {"first": (1, 20, 28), "second": (20, 50, 14)}  # channels, filters, height and width


def two_steps(layer: PooledConv2d, x: Tensor) -> Tensor:
    """What the layer computes, with PyTorch's convolution."""
    return max_pool_relu(F.conv2d(x, layer.weight, layer.bias, padding=layer.padding))  # type: ignore[arg-type]


def milliseconds(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """Of the forward and of the backward pass."""
    out: list[Tensor] = []
    with torch.autocast("cpu", torch.bfloat16, enabled=x.dtype == torch.bfloat16):
        forward = seconds(lambda: out.append(function(x)))
    gradient = torch.randn_like(out[0])
    return 1e3 * forward, 1e3 * seconds(lambda: out[0].backward(gradient))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()  # as engines do
    for kind in (torch.bfloat16, torch.float32):
        for name, (channels, filters, size) in LAYERS.items():
            layer = PooledConv2d(channels, filters, 5).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            x = torch.randn(IMAGES, size, size, channels).to(kind).permute(0, 3, 1, 2)
            ways = {"ours": layer, "two steps": lambda x, layer=layer: two_steps(layer, x)}
            found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
            for _ in range(WARMUP + PASSES):
                for way, function in ways.items():
                    forward, of_parameters = milliseconds(function, x)
                    _, of_both = milliseconds(function, x.detach().requires_grad_())
                    found[way].append((forward, of_parameters, of_both))
            for way, passes in found.items():
                medians = [statistics.median(times) for times in zip(*passes[WARMUP:], strict=True)]
                print(
                    f"{str(kind).removeprefix('torch.'):9} {name:7} {way:10} "
                    "forward {:5.1f}  backward, parameters {:5.1f}  with the images {:5.1f}".format(*medians),
                    flush=True,
                )


if __name__ == "__main__":
    main()
