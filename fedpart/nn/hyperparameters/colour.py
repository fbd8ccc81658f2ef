"""Brightness, contrast, saturation and hue of images, with learned ranges."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpart.nn.hyperparameters.base import TRANSFORMS, Bound, HyperModule, check_images
from fedpart.randomness.noise import uniform

# RGB to YIQ (NTSC): luma, and the colour in two numbers, which are 0 for grey: those rows sum to 0.
_YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


@TRANSFORMS.register("colour")
class ColourJitter(HyperModule):
    """Changes brightness, contrast, saturation and hue of each row by amounts from learned ranges.

    Each amount is drawn from ``U(-half, half)``; psi is the half-widths. A pixel ``x`` with luma ``l`` is the
    grey ``l`` and the colour ``x - l``. The colour is turned by the hue about the grey axis (a rotation in
    YIQ), and multiplied by ``1 + saturation``. The distance to the image's mean luma is multiplied by
    ``1 + contrast``, and brightness is added. The four commute, so they have no order. Values are not
    clamped, since that would take the gradient away. They may be normalised; grey is where the channels'
    values are equal.

    Images with one channel, or another number than three, have brightness and contrast alone: the other two
    are left out with None.

    Args:
        brightness: initial half-width, in the units of the images' values; None leaves it out.
        contrast, saturation: initial half-widths of what is added to a factor of 1; None leaves them out.
        hue: initial half-width as a fraction of a full turn; None leaves it out.

    A half-width of exactly 0 has zero expected gradient, for half and -half are the same distribution.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("range",)
    turn: Tensor

    def __init__(
        self,
        brightness: float | None = 0.1,
        contrast: float | None = 0.1,
        saturation: float | None = 0.1,
        hue: float | None = 0.05,
    ) -> None:
        super().__init__()
        widths = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
        start = {name: value for name, value in widths.items() if value is not None}
        if not start:
            raise ValueError("A colour jitter changes nothing: give a number for one of " + ", ".join(widths))
        for name, value in start.items():
            if not math.isfinite(value):
                raise ValueError(f"The range of {name} starts from a finite number, got {value}.")
        self.parts = tuple(start)
        self.range = nn.Parameter(torch.tensor(list(start.values()), dtype=torch.get_default_dtype()))
        yiq = torch.tensor(_YIQ, dtype=torch.float64)
        quarter = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
        # [3, 3]: a colour (luma 0) turned by 90 degrees
        turn = (torch.linalg.inv(yiq) @ quarter @ yiq).to(self.range.dtype)
        self.register_buffer("turn", turn, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has its own amounts."""
        check_images(x, "Colour jitter")
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
            x = light + self._coloured(x - light, drawn)
        if "contrast" in drawn:
            mean = light.mean((1, 2, 3), keepdim=True)
            x = mean + (1 + drawn["contrast"]) * (x - mean)
        return x + drawn["brightness"] if "brightness" in drawn else x

    def _coloured(self, colour: Tensor, drawn: dict[str, Tensor]) -> Tensor:
        if "hue" in drawn:
            angle = 2 * math.pi * drawn["hue"]
            turned = torch.einsum("cd,ndhw->nchw", self.turn.to(colour.dtype), colour)
            colour = angle.cos() * colour + angle.sin() * turned
        return (1 + drawn["saturation"]) * colour if "saturation" in drawn else colour

    def bounds(self) -> dict[str, tuple[Bound, Bound]]:
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
