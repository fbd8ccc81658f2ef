"""A ResNet-18 trained to tell digits 0-4 apart, for ``frozen_resnet`` to keep as its body.

``python -m simulations.pretraining.resnet`` writes what ``simulations/configs/frozen_resnet.yaml`` reads.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

from fedpart.checks import require
from fedpart.data import Dataset, Splits, load_splits
from fedpart.nn.models.pretrained import three_channels
from simulations.pretraining.descent import descend, training_here

OUT = Path("pretrained/digits_resnet18.pt")
CLASSES = [0, 1, 2, 3, 4]


def pretrain_resnet(
    splits: Splits, epochs: int = 1, batch_size: int = 64, learning_rate: float = 1e-3, seed: int = 0
) -> nn.Module:
    """A torchvision ResNet-18 trained on all of ``splits.train``, on one thread."""
    from torchvision.models import resnet18

    data = splits.train
    steps = epochs * (len(data) // batch_size)
    remedy = "give more of either"
    require(steps, f"{len(data)} images in {epochs} epochs are no batch of {batch_size}; {remedy}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = resnet18(num_classes=splits.num_classes)
        optimiser = torch.optim.Adam(model.parameters(), learning_rate)
        falling = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
        order = torch.empty(0, dtype=torch.int64)

        def loss_of(step: int) -> Tensor:
            nonlocal order
            at = step * batch_size % (len(data) // batch_size * batch_size)
            if at == 0:
                order = torch.randperm(len(data))
            images, targets = data.batch(order[at : at + batch_size])
            return functional.cross_entropy(model(three_channels(images)), targets)

        descend(loss_of, optimiser, falling, steps, log_every=50)
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset) -> float:
    """The share of right answers, in batches of 500 images."""
    parts = (data.batch(slice(at, at + 500)) for at in range(0, len(data), 500))
    right = sum(int((model(three_channels(x)).argmax(1) == y).sum()) for x, y in parts)
    return right / len(data)


def main(
    out: Annotated[Path, typer.Argument(help="File of the weights.")] = OUT,
    data_dir: Annotated[str, typer.Option(help="Folder of MNIST.")] = "../shared/data",
    epochs: Annotated[int, typer.Option(min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of initial values and order.")] = 0,
) -> None:
    """Train a ResNet-18 on the digits 0-4 of MNIST, and write its weights."""
    with training_here():
        splits = load_splits("mnist", data_dir, classes=CLASSES)
        out.parent.mkdir(parents=True, exist_ok=True)
        model = pretrain_resnet(splits, epochs, seed=seed)
        torch.save(model.state_dict(), out)
    print(f"{out}: {accuracy(model, splits.test):.1%} of the test images of its own classes are told right.")


if __name__ == "__main__":
    typer.run(main)
