"""What a training step costs: partitioned beside plain, and the MNIST CNN's convolutions with their pooling.

python -m benchmarks.costs.steps partitioned --model mnist_cnn --batch 200 --samples 20
python -m benchmarks.costs.steps convolutions
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.script import in_turn, seconds, tell, tell_versions
from fedpart import AffineAugmentation, Batch, Dataset, Task, Training, TrainingSettings
from fedpart.kernels import keep_freed_memory
from fedpart.nn.layers.pooling import PooledConv2d, max_pool_relu
from fedpart.nn.models import fixup_resnet, mnist_cnn

CHUNKS = (0.8, 0.1, 0.1)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist_cnn": (lambda: mnist_cnn(dropout=None), (1, 28, 28)),
    "fixup_8": (lambda: fixup_resnet(depth=8), (3, 32, 32)),
    "fixup_14": (lambda: fixup_resnet(depth=14), (3, 32, 32)),
}
IMAGES, PASSES, WARMUP = 500, 20, 2
LAYERS = {"first": (1, 20, 28), "second": (20, 50, 14)}  # channels, filters, height and width

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


def plain_step(net: nn.Module, batch: Batch, samples: int) -> Callable[[], object]:
    """A training step of plain PyTorch at the same network, batch and S."""
    augmentation = AffineAugmentation("centred", 0.1).requires_grad_(False)
    adam = torch.optim.Adam(net.parameters(), 1e-3)

    def step() -> float:
        x = augmentation(batch.inputs.repeat_interleave(samples, 0))
        logits = net(x).view(len(batch.inputs), samples, -1).mean(1)
        loss = F.cross_entropy(logits, batch.targets)
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss.item()

    return step


@app.command()
def partitioned(
    model: str = "mnist_cnn", batch: int = 200, samples: int = 20, repeats: int = 15, threads: int = 1
) -> None:
    """What partitioning costs in centralised training: a step of a partition, and of psi, over a plain step.

    The plain step is torch alone: the network under a frozen affine augmentation, logits averaged over S
    samples, cross-entropy, backward, torch's Adam. All see batches of the same size, are interleaved, and
    medians are compared, as in Table 8 of the paper (on its GPU 1.08 to 1.21 for weights, 1.08 and 1.09 for
    psi). The first row has the bytes of the weights, and of what a partition keeps beside the weights
    (Appendix D.2).
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network, shape = NETWORKS[model]
    data = Dataset(torch.rand(5 * batch, *shape), torch.randint(10, (5 * batch,)))
    task = Task(network(), transforms=[AffineAugmentation("centred", 0.1)], samples=samples)
    training = Training(task, data, TrainingSettings(batch_size=batch, chunks=CHUNKS))
    parts: Any = training.partition
    kept = {"assignment": parts.assignment, "permutation": parts.order, "defaults": parts.default}
    tell(model=model, weights=training.w.nbytes, **{name: held.nbytes for name, held in kept.items()})
    examples = Batch(data.inputs[:batch], data.targets[:batch])
    times = in_turn(
        {
            "plain": plain_step(network(), examples, samples),
            "w_1 (0.8 of the weights)": lambda: training.parameter_step(1, examples),
            "w_3 (0.1 of the weights)": lambda: training.parameter_step(3, examples),
            "psi": lambda: training.psi_step(2, examples),
        },
        repeats,
    )
    plain = statistics.median(times["plain"])
    for name, row in times.items():
        median, spread = statistics.median(row), round(max(row) / min(row) - 1, 3)
        took = {"seconds": round(median, 5), "spread": spread, "ratio_to_plain": round(median / plain, 4)}
        tell(step=name, batch=batch, samples=samples, **took)
    tell_versions(threads=threads)


def two_steps(layer: PooledConv2d, x: Tensor) -> Tensor:
    """What the layer computes, with PyTorch's convolution."""
    return max_pool_relu(F.conv2d(x, layer.weight, layer.bias, padding=layer.padding))  # type: ignore[arg-type]


def passes(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """Milliseconds of the forward and of the backward pass."""
    out: list[Tensor] = []
    with torch.autocast("cpu", torch.bfloat16, enabled=x.dtype == torch.bfloat16):
        forward = seconds(lambda: out.append(function(x)))
    gradient = torch.randn_like(out[0])
    return 1e3 * forward, 1e3 * seconds(lambda: out[0].backward(gradient))


@app.command()
def convolutions() -> None:
    """Our layer, and PyTorch's convolution with our pooling: milliseconds for 500 images of noise.

    On one thread, pass by pass in turn, medians of 20: forward, and backward to parameters, and to the images
    as well.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()  # as engines do
    for kind in (torch.bfloat16, torch.float32):
        for name, (channels, filters, size) in LAYERS.items():
            layer = PooledConv2d(channels, filters, 5).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            x = torch.randn(IMAGES, size, size, channels).to(kind).permute(0, 3, 1, 2)
            ways = {"ours": layer, "two steps": lambda x, layer=layer: two_steps(layer, x)}
            times: dict[str, list[tuple[float, ...]]] = {way: [] for way in ways}
            for _ in range(WARMUP + PASSES):
                for way, function in ways.items():
                    of_both = passes(function, x.detach().requires_grad_())[1]
                    times[way].append((*passes(function, x), of_both))
            for way, rows in times.items():
                medians = [round(statistics.median(row), 1) for row in zip(*rows[WARMUP:], strict=True)]
                took = dict(zip(("forward", "parameters", "with_images"), medians, strict=True))
                tell(type=str(kind), layer=name, way=way, **took)


if __name__ == "__main__":
    app()
