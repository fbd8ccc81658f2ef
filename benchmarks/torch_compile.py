"""Whether torch.compile pays on this device: a step of the MNIST CNN in bfloat16, on one thread.

``python -m benchmarks.torch_compile``: the same network in plain PyTorch, compiled, and with our layers, step
by step in turn; then the first two with dropout. A C++ compiler is needed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.models import mnist_cnn

EXAMPLES, SAMPLES, STEPS, WARMUP = 50, 10, 11, 3


def plain_cnn(rate: float) -> nn.Sequential:
    """The network of :func:`fedpart.models.mnist_cnn` as one writes it in PyTorch."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(rate)),
        *(nn.Conv2d(20, 50, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(rate)),
        *(nn.Flatten(), nn.Linear(2450, 500), nn.ReLU(), nn.Dropout(rate)),
        *(nn.Linear(500, 50), nn.ReLU(), nn.Dropout(rate), nn.Linear(50, 10)),
    )


def step_of(network: nn.Module, compiled: bool) -> Callable[[Tensor, Tensor], float]:
    """Seconds of a forward and a backward pass; logits are averaged over S samples."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(network(x).float().view(EXAMPLES, SAMPLES, -1).mean(1), y)

    forward = torch.compile(loss) if compiled else loss

    def step(x: Tensor, y: Tensor) -> float:
        network.zero_grad()
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            found = forward(x, y)
        found.backward()
        return time.perf_counter() - start

    return step


def images() -> Tensor:
    """``[N, 1, 28, 28]``, channels-last, with the strides that :class:`fedpart.Task` gives one channel."""
    return torch.rand(EXAMPLES * SAMPLES, 28, 28, 1).permute(0, 3, 1, 2)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = images()
    y = torch.randint(10, (EXAMPLES,))
    for rate in (0.0, 0.1):
        steps = {
            "plain": step_of(plain_cnn(rate), False),
            "torch.compile": step_of(plain_cnn(rate), True),
        }
        if not rate:  # our dropout learns its rate, which is another computation
            steps["ours"] = step_of(mnist_cnn(dropout=None), False)
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(WARMUP + STEPS):
            for name, step in steps.items():
                seconds[name].append(step(x, y))
        for name, all_of_them in seconds.items():
            median = statistics.median(all_of_them[WARMUP:])
            print(
                f"dropout {rate:.0%}  {name:14} {1e3 * median:7.1f} ms a step, first {all_of_them[0]:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
