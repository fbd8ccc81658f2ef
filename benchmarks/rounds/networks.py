"""The workloads' models in plain PyTorch: affine samples, network, concrete dropout, logits averaged."""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rounds.workloads import Workload
from fedpart.nn.hyperparameters import ConcreteDropout
from fedpart.nn.layers import MaxPoolReLU, PooledConv2d
from fedpart.nn.models import MODELS

Uniform = Callable[[Tensor], Tensor]
"""Uniform numbers in (0, 1) in the shape, type and layout of a tensor: ``torch.rand_like``."""


class Dropout(nn.Module):
    """Concrete dropout at a temperature of 0.1; ``uniform`` is its noise."""

    uniform: Uniform = staticmethod(torch.rand_like)

    def __init__(self, logit: Tensor) -> None:
        super().__init__()
        self.logit = nn.Parameter(logit.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        keep = self.uniform(x.detach()).logit_().add_(self.logit).mul_(-10).sigmoid_()
        return x * (keep * (1 + self.logit.exp()))


def network(workload: Workload) -> nn.Module:
    """As fedpart has it."""
    build = MODELS.resolve(workload.model)
    options = {"dropout": workload.dropout} if "dropout" in inspect.signature(build).parameters else {}
    return build(num_classes=workload.classes, input_shape=workload.shape, **options)


def plain(module: nn.Module) -> nn.Module:
    """The same network, with torch's layers in the place of fedpart's; weights are shared."""
    if isinstance(module, ConcreteDropout):
        return Dropout(module.logit)
    if isinstance(module, MaxPoolReLU):
        return nn.Sequential(nn.MaxPool2d(2), nn.ReLU())
    if isinstance(module, PooledConv2d):
        shape = module.in_channels, module.out_channels, module.kernel_size
        convolution = nn.Conv2d(*shape, padding=module.padding)
        convolution.weight, convolution.bias = module.weight, module.bias
        return nn.Sequential(convolution, nn.MaxPool2d(2), nn.ReLU())
    for name, child in module.named_children():
        setattr(module, name, plain(child))
    return module


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
        self, network: nn.Module, samples: int = 1, half_width: float | None = None,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:  # fmt: skip
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
