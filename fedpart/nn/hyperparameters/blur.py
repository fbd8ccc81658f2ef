"""Gaussian blur whose largest strength is learned."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from fedpart.nn.hyperparameters.base import TRANSFORMS, Bound, HyperModule, check_images, started
from fedpart.randomness.noise import uniform


def discrete_gaussian(variance: Tensor, size: int) -> Tensor:
    """Gaussians on pixels: the heat kernel of a circle of ``size`` pixels, odd, after the time ``variance``.

    On a line of pixels this is ``exp(-t) I_n(t)`` (Lindeberg 1990, *Scale-Space for Discrete Signals*), whose
    variance is exactly ``t``. A sampled Gaussian is flat below half a pixel, so a small blur could not be
    learned with it; here the neighbours' weights begin as ``t / 2``. The circle matters once the deviation is
    about a quarter of ``size``; in the limit the kernel is a box.

    ``variance [rows, 1]`` is in squared pixels. ``[rows, size]``, symmetric about the middle; rows sum to 1.
    """
    pixels = torch.arange(size, device=variance.device, dtype=variance.dtype)
    frequencies = 2 * math.pi / size * pixels
    decay = torch.exp(variance * (frequencies.cos() - 1))
    return decay @ (frequencies[:, None] * (pixels - size // 2)).cos() / size


@TRANSFORMS.register("blur")
class GaussianBlur(HyperModule):
    """Blurs each row by a Gaussian whose deviation is drawn from ``U(0, sigma)``; psi is ``sigma``.

    Beyond its edges an image goes on as it is there.

    Args:
        sigma: initial maximal standard deviation in pixels; at exactly 0 its gradient is 0, for sigma and
            -sigma are the same.
        kernel_size: odd; about four times the largest deviation that shall be possible.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("sigma",)
    fixed = ("kernel_size",)

    def __init__(self, sigma: float = 0.5, kernel_size: int = 9) -> None:
        super().__init__()
        if kernel_size < 3 or kernel_size % 2 == 0:
            raise ValueError(f"The kernel of a blur has an odd size of at least 3, got {kernel_size}.")
        self.kernel_size = kernel_size
        self.sigma = started(sigma, "deviation of a blur starts from a finite number of pixels")

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has its own deviation."""
        check_images(x, "A blur")
        drawn = self.sigma * uniform((len(x), 1), like=self.sigma)
        kernel = discrete_gaussian(drawn.square(), self.kernel_size).to(x.dtype)
        return _along(_along(x, kernel, 2), kernel, 3)

    def bounds(self) -> dict[str, tuple[Bound, Bound]]:
        """The kernel's size: it is a box then."""
        most = float(self.kernel_size)
        return {"sigma": (-most, most)}

    def widths(self) -> Tensor:
        """Width of the deviation's distribution in pixels, ``[1]``."""
        return self.sigma.abs().view(1)

    def physical(self) -> dict[str, float]:
        return {"largest sigma [pixels]": self.sigma.detach().abs().item()}


def _along(x: Tensor, kernel: Tensor, dim: int) -> Tensor:
    """Each row of ``x [rows, channels, height, width]`` under its own ``kernel [rows, size]``."""
    size, length = kernel.shape[1], x.shape[dim]
    beyond = list(x.shape)
    beyond[dim] = size // 2
    first, last = x.narrow(dim, 0, 1), x.narrow(dim, length - 1, 1)
    # torch's padding by the edge adds gradients in any order on a GPU
    padded = torch.cat([first.expand(beyond), x, last.expand(beyond)], dim)
    out = torch.zeros_like(x)
    for place in range(size):
        out = out + kernel[:, place].view(-1, 1, 1, 1) * padded.narrow(dim, place, length)
    return out
