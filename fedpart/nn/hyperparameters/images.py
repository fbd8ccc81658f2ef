"""Hyperparameters of images: colour, blur, flips, and squares that are cut out."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.nn.hyperparameters import base
from fedpart.randomness.noise import uniform

# RGB to YIQ (NTSC): luma, and the colour in two numbers, which are 0 for grey: those rows sum to 0.
_YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


@base.TRANSFORMS.register("colour")
class ColourJitter(base.HyperModule):
    """Changes brightness, contrast, saturation and hue of each row by amounts from ``U(-half, half)``.

    psi is the half-widths. The colour of a pixel, ``x`` less its luma, is turned by the hue about the grey
    axis (in YIQ), and multiplied by ``1 + saturation``. The distance to the image's mean luma is multiplied
    by ``1 + contrast``, and brightness is added. The four commute. Values are not clamped, since that would
    take the gradient away, and may be normalised. Images of other than three channels have brightness and
    contrast alone. A half-width of exactly 0 has zero expected gradient.

    Args:
        brightness: initial half-width, in the units of the images' values; None leaves it out.
        contrast, saturation: initial half-widths of what is added to a factor of 1; None leaves them out.
        hue: initial half-width as a fraction of a full turn; None leaves it out.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("range",)
    turn: Tensor

    def __init__(
        self, brightness: float | None = 0.1, contrast: float | None = 0.1, saturation: float | None = 0.1,
        hue: float | None = 0.05,
    ) -> None:  # fmt: skip
        super().__init__()
        widths = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
        start = {name: value for name, value in widths.items() if value is not None}
        if not start:
            raise ValueError("A colour jitter changes nothing: give a number for one of " + ", ".join(widths))
        for name, value in start.items():
            require(math.isfinite(value), f"The range of {name} starts from a finite number, got {value}.")
        self.parts = tuple(start)
        self.range = nn.Parameter(torch.tensor(list(start.values()), dtype=torch.get_default_dtype()))
        yiq = torch.tensor(_YIQ, dtype=torch.float64)
        quarter = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
        # [3, 3]: a colour (luma 0) turned by 90 degrees
        turn = (torch.linalg.inv(yiq) @ quarter @ yiq).to(self.range.dtype)
        self.register_buffer("turn", turn, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has its own amounts."""
        base.check_images(x, "Colour jitter")
        if x.shape[1] != 3 and {"saturation", "hue"} & set(self.parts):
            raise ValueError(
                f"Saturation and hue are of images with 3 channels, not {x.shape[1]}; leave them out: "
                f"ColourJitter(saturation=None, hue=None), in a configuration options: {{saturation: null, "
                f"hue: null}}."
            )
        u = uniform((len(x), len(self.parts)), like=self.range)
        amounts = (self.range * (2 * u - 1)).to(x.dtype)
        drawn = {name: amounts[:, i].view(-1, 1, 1, 1) for i, name in enumerate(self.parts)}
        light = x
        if x.shape[1] == 3:
            light = (x * x.new_tensor(_YIQ[0]).view(3, 1, 1)).sum(1, keepdim=True)
            colour = x - light
            if "hue" in drawn:
                angle = 2 * math.pi * drawn["hue"]
                turned = torch.einsum("cd,ndhw->nchw", self.turn.to(colour.dtype), colour)
                colour = angle.cos() * colour + angle.sin() * turned
            x = light + ((1 + drawn["saturation"]) * colour if "saturation" in drawn else colour)
        if "contrast" in drawn:
            mean = light.mean((1, 2, 3), keepdim=True)
            x = mean + (1 + drawn["contrast"]) * (x - mean)
        return x + drawn["brightness"] if "brightness" in drawn else x

    def bounds(self) -> dict[str, tuple[base.Bound, base.Bound]]:
        """A full turn of the hue, ten times the contrast and saturation; brightness has the images' units."""
        known = {"hue": 1.0, "contrast": 10.0, "saturation": 10.0}
        largest = self.range.new_tensor([known.get(part, math.inf) for part in self.parts])
        return {"range": (-largest, largest)}

    def widths(self) -> Tensor:
        """Width of each range, ``[number of parts]``."""
        return 2 * self.range.abs()

    def physical(self) -> dict[str, float]:
        """Half of each range: the hue in degrees, the others in percent."""
        values = {}
        for name, half in zip(self.parts, self.range.detach().abs().tolist(), strict=True):
            unit, factor = ("deg", 360.0) if name == "hue" else ("%", 100.0)
            values[f"{name} [+-{unit}]"] = factor * half
        return values

    def extra_repr(self) -> str:
        return ", ".join(self.parts)


def discrete_gaussian(variance: Tensor, size: int) -> Tensor:
    """``[rows, size]``: Gaussians of ``variance [rows, 1]`` on a circle of ``size`` pixels, odd; rows sum to
    1. On a line this is ``exp(-t) I_n(t)`` (Lindeberg 1990, *Scale-Space for Discrete Signals*), whose
    variance is exactly ``t``. A sampled Gaussian is flat below half a pixel, so that a small blur could not
    be learned with it."""
    pixels = torch.arange(size, device=variance.device, dtype=variance.dtype)
    frequencies = 2 * math.pi / size * pixels
    decay = torch.exp(variance * (frequencies.cos() - 1))
    with torch.autocast(variance.device.type, enabled=False):
        return decay @ (frequencies[:, None] * (pixels - size // 2)).cos() / size


@base.TRANSFORMS.register("blur")
class GaussianBlur(base.HyperModule):
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
        self.sigma = base.started(sigma, "deviation of a blur starts from a finite number of pixels")

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has its own deviation."""
        base.check_images(x, "A blur")
        drawn = self.sigma * uniform((len(x), 1), like=self.sigma)
        kernel = discrete_gaussian(drawn.square(), self.kernel_size).to(x.dtype)
        return _along(_along(x, kernel, 2), kernel, 3)

    def bounds(self) -> dict[str, tuple[base.Bound, base.Bound]]:
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


_DIMENSIONS = {"horizontal": 3, "vertical": 2}


@base.TRANSFORMS.register("flip")
class RandomFlip(base.HyperModule):
    """Mixes each row with its mirror image: ``z flip(x) + (1 - z) x``, with a concrete ``z`` for each row.

    A flip that happens or not has no gradient in its probability ``p``. So it is relaxed (Maddison et al.
    2016): ``z = sigmoid((logit p + log u - log(1 - u)) / temperature)``, ``u ~ U(0, 1)``, which exceeds 1/2
    with probability p. A z between 0 and 1 is a double exposure: at p = 1/2 and temperature 0.1, z lies
    between 0.05 and 0.95 for 15% of the rows. A lower temperature has fewer of them, and noisier gradients.

    Args:
        probability: initial p, in (0, 1).
        axis: ``horizontal`` exchanges left and right, ``vertical`` top and bottom.
        temperature: of the relaxation, > 0.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("logit",)
    fixed = ("axis", "temperature")
    limits: ClassVar = {"logit": (base.RARE, -base.RARE)}  # all but one in a million are flipped, or none

    def __init__(
        self, probability: float = 0.5, axis: Literal["horizontal", "vertical"] = "horizontal",
        temperature: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        if axis not in _DIMENSIONS:
            raise ValueError(f"Unknown axis {axis!r} of a flip; choose one of {', '.join(_DIMENSIONS)}.")
        what = "The probability of a flip"
        logit = base.logit_of(probability, temperature, what, "leave the flip out for 0")
        self.axis, self.temperature, self.logit = axis, temperature, nn.Parameter(torch.tensor(logit))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has its own z."""
        base.check_images(x, "A flip")
        u = uniform((len(x), 1, 1, 1), like=self.logit)
        z = base.concrete(self.logit, u, self.temperature).to(x.dtype)
        return z * x.flip(_DIMENSIONS[self.axis]) + (1 - z) * x

    def physical(self) -> dict[str, float]:
        return {f"{self.axis} [%]": 100 * torch.sigmoid(self.logit.detach()).item()}


@base.TRANSFORMS.register("cutout")
class Cutout(base.HyperModule):
    """Sets a square of each row to 0; psi is its side, and its centre is uniform over the image.

    The square may reach beyond the image, as in the paper. Its edges are soft (:func:`.soft_box`), or a
    loss would not be differentiable in the side; so a square of few pixels is not wholly 0 inside.

    Args:
        side: initial side as a fraction of the image's shorter side; at exactly 0 its gradient is 0, for side
            and -side are the same.
        softness: of the edges, in pixels, > 0; an edge goes from 10% to 90% within 4.4 of it.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("side",)
    limits: ClassVar = {"side": (-2.0, 2.0)}  # nothing is left of an image, wherever the centre is
    fixed = ("softness",)

    def __init__(self, side: float = 0.2, softness: float = 0.5) -> None:
        super().__init__()
        base.check_softness(softness)
        self.softness = softness
        self.side = base.started(side, "side of a cutout starts from a finite fraction of the image")

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has a square of its own."""
        base.check_images(x, "Cutout")
        height, width = x.shape[2:]
        centre = uniform((len(x), 2), like=self.side)
        pixels = self.side * min(height, width)
        down = base.soft_box(height, centre[:, :1], pixels / height, self.softness)
        across = base.soft_box(width, centre[:, 1:], pixels / width, self.softness)
        hole = down[:, None, :, None] * across[:, None, None, :]
        return x * (1 - hole).to(x.dtype)

    def physical(self) -> dict[str, float]:
        return {"side [%]": 100 * self.side.detach().abs().item()}
