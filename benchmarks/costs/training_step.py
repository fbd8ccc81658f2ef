"""What partitioning costs in centralised training: a step of a partition, and of psi, over a plain step.

The plain step is torch alone: the network under a frozen affine augmentation, logits averaged over S samples,
cross-entropy, backward, torch's Adam. All see batches of the same size, are interleaved, and medians are
compared, as in Table 8 of the paper (on its GPU 1.08 to 1.21 for weights, 1.08 and 1.09 for psi). The first
row has the bytes of the weights, and of what a partition keeps beside the weights (Appendix D.2).

    python benchmarks/costs/training_step.py --model mnist_cnn --batch 200 --samples 20
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.script import in_turn, parser, tell, tell_versions
from fedpart import AffineAugmentation, Batch, Dataset, Task, Training, TrainingSettings
from fedpart.nn.models import fixup_resnet, mnist_cnn

CHUNKS = (0.8, 0.1, 0.1)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist_cnn": (lambda: mnist_cnn(dropout=None), (1, 28, 28)),
    "fixup_8": (lambda: fixup_resnet(depth=8), (3, 32, 32)),
    "fixup_14": (lambda: fixup_resnet(depth=14), (3, 32, 32)),
}


def plain_step(net: nn.Module, batch: Batch, samples: int) -> Callable[[], object]:
    """A training step of plain PyTorch at the same network, batch and S."""
    augmentation = AffineAugmentation("centred", 0.1).requires_grad_(False)
    adam = torch.optim.Adam(net.parameters(), 1e-3)

    def step() -> float:
        x = augmentation(batch.inputs.repeat_interleave(samples, 0))
        logits = net(x).view(len(batch.inputs), samples, -1).mean(1)
        loss = functional.cross_entropy(logits, batch.targets)
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss.item()

    return step


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--model", choices=NETWORKS, default="mnist_cnn")
    asked.add_argument("--batch", type=int, default=200, help="examples per step (the paper: 200)")
    asked.add_argument("--samples", type=int, default=20, help="S (the paper: 20)")
    asked.add_argument("--repeats", type=int, default=15)
    asked.add_argument("--threads", type=int, default=1)
    given = asked.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    network, shape = NETWORKS[given.model]
    data = Dataset(torch.rand(5 * given.batch, *shape), torch.randint(10, (5 * given.batch,)))
    task = Task(network(), transforms=[AffineAugmentation("centred", 0.1)], samples=given.samples)
    training = Training(task, data, TrainingSettings(batch_size=given.batch, chunks=CHUNKS))
    parts: Any = training.partition
    tell(
        model=given.model,
        weights=training.w.nbytes,
        assignment=parts.assignment.nbytes,
        permutation=parts.order.nbytes,
        defaults=parts.default.nbytes,
    )
    batch = Batch(data.inputs[: given.batch], data.targets[: given.batch])
    steps: dict[str, Callable[[], object]] = {
        "plain": plain_step(network(), batch, given.samples),
        "w_1 (0.8 of the weights)": lambda: training.parameter_step(1, batch),
        "w_3 (0.1 of the weights)": lambda: training.parameter_step(3, batch),
        "psi": lambda: training.psi_step(2, batch),
    }
    seconds = in_turn(steps, given.repeats)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        tell(
            step=name,
            batch=given.batch,
            samples=given.samples,
            seconds=round(median, 5),
            spread=round(max(seconds[name]) / min(seconds[name]) - 1, 3),
            ratio_to_plain=round(median / medians["plain"], 4),
        )
    tell_versions(threads=given.threads)


if __name__ == "__main__":
    main()
