"""The workloads' models in plain PyTorch: affine samples, network, concrete dropout, logits averaged."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.nn.models.cnn import pfl_cnn
from fedpart.nn.models.resnet9 import Residual, Scaled

Uniform = Callable[[Tensor], Tensor]
"""Uniform numbers in (0, 1) in the shape, type and layout of a tensor: ``torch.rand_like``."""


class Dropout(nn.Module):
    """Concrete dropout at a temperature of 0.1; ``uniform`` is its noise."""

    uniform: Uniform = staticmethod(torch.rand_like)

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(math.log(rate / (1 - rate))))

    def forward(self, x: Tensor) -> Tensor:
        keep = self.uniform(x.detach()).logit_().add_(self.logit).mul_(-10).sigmoid_()
        return x * (keep * (1 + self.logit.exp()))


def dropout(rate: float | None) -> list[nn.Module]:
    return [] if rate is None else [Dropout(rate)]


def affine(images: Tensor, range: Tensor, uniform: Uniform) -> Tensor:
    """Each image under a map of its own: ``range [2, 7]`` holds centre and half-width of its components."""
    centre, half = range
    low, high = centre - half, centre + half
    theta = low + (high - low) * uniform(images.new_empty(len(images), 7))
    angle, sx, sy, hx, hy, tx, ty = theta.unbind(1)
    cos, sin = angle.cos(), angle.sin()
    a, b, c, d = sx, hx * sy, hy * sx, sy
    rows = [cos * a - sin * c, cos * b - sin * d, tx, sin * a + cos * c, sin * b + cos * d, ty]
    n, _, height, width = images.shape
    like = {"dtype": images.dtype, "device": images.device}
    y, x = torch.meshgrid(*(torch.linspace(-1, 1, size, **like) for size in (height, width)), indexing="ij")
    # one product, where affine_grid computes n small ones, in three times the time
    grid = torch.stack(rows, 1).view(2 * n, 3) @ torch.stack([x, y, torch.ones_like(x)]).view(3, -1)
    grid = grid.view(n, 2, height, width).permute(0, 2, 3, 1)
    return F.grid_sample(images, grid, align_corners=True)


class Model(nn.Module):
    """A network, affine samples of every image (or none), and the cross-entropy of mean logits."""

    def __init__(
        self,
        network: nn.Module,
        samples: int = 1,
        half_width: float | None = None,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:
        super().__init__()
        self.network = network.to(memory_format=memory_format)
        self.samples, self.format = samples, memory_format
        self.range = None
        if half_width is not None:
            identity = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
            self.range = nn.Parameter(torch.stack([identity, torch.full_like(identity, half_width)]))
        self.dropouts = [layer for layer in network.modules() if isinstance(layer, Dropout)]
        logits = [layer.logit for layer in self.dropouts]
        self.psi = ([] if self.range is None else [self.range]) + logits
        self.weights = [value for name, value in network.named_parameters() if not name.endswith("logit")]

    def loss(self, x: Tensor, y: Tensor, uniform: Uniform = torch.rand_like) -> Tensor:
        """Mean cross-entropy of ``x [B, C, H, W]`` and ``y [B]``."""
        if self.samples > 1:
            x = x.repeat_interleave(self.samples, 0)
        if self.range is not None:
            x = affine(x, self.range, uniform)
        for layer in self.dropouts:
            layer.uniform = uniform
        logits = self.network(x.contiguous(memory_format=self.format))
        return F.cross_entropy(logits.view(len(y), self.samples, -1).mean(1), y)


def cnn(
    channels: Sequence[int], hidden: Sequence[int], classes: int, shape: Sequence[int], rate: float | None
) -> nn.Sequential:
    depth, height, width = shape
    layers: list[nn.Module] = []
    for outputs in channels:
        layers += [nn.Conv2d(depth, outputs, 5, padding=2), nn.MaxPool2d(2)]
        layers += [nn.ReLU(), *dropout(rate)]  # of a quarter of the numbers
        depth, height, width = outputs, height // 2, width // 2
    layers.append(nn.Flatten())
    features = depth * height * width
    for outputs in hidden:
        layers += [nn.Linear(features, outputs), nn.ReLU(), *dropout(rate)]
        features = outputs
    return nn.Sequential(*layers, nn.Linear(features, classes))


def resnet9(
    classes: int, shape: Sequence[int], rate: float | None, width: int = 64, groups: int = 32
) -> nn.Module:
    def conv(inputs: int, outputs: int, *pool: nn.Module) -> list[nn.Module]:
        norm = nn.GroupNorm(groups, outputs)
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), norm, *pool, nn.ReLU()]

    def residual(channels: int) -> Residual:
        block = (*conv(channels, channels), *dropout(rate), *conv(channels, channels))
        return Residual(nn.Sequential(*block))

    return nn.Sequential(
        *conv(shape[0], width),
        *conv(width, 2 * width, nn.MaxPool2d(2)),
        residual(2 * width),
        *conv(2 * width, 4 * width, nn.MaxPool2d(2)),
        *conv(4 * width, 8 * width, nn.MaxPool2d(2)),
        residual(8 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
        Scaled(0.125),
    )


NETWORKS: dict[str, Callable[[int, Sequence[int], float | None], nn.Module]] = {
    "mnist_cnn": lambda classes, shape, rate: cnn((20, 50), (500, 50), classes, shape, rate),
    "digits_cnn": lambda classes, shape, rate: cnn((8, 16), (64,), classes, shape, rate),
    "resnet9": resnet9,
    "pfl_cnn": lambda classes, shape, rate: pfl_cnn(classes, shape),
}
