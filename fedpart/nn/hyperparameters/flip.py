"""Flips of images with a learned probability."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedpart.nn.hyperparameters.base import RARE, TRANSFORMS, HyperModule, check_images, concrete, logit_of
from fedpart.randomness.noise import uniform

_DIMENSIONS = {"horizontal": 3, "vertical": 2}


@TRANSFORMS.register("flip")
class RandomFlip(HyperModule):
    """Mixes each row with its mirror image: ``z flip(x) + (1 - z) x``, with a concrete ``z`` for each row.

    A flip that happens or not has no gradient in its probability ``p``. So it is relaxed (Maddison et al.
    2016): ``z = sigmoid((logit p + log u - log(1 - u)) / temperature)``, ``u ~ U(0, 1)``. Whatever the
    temperature, z exceeds 1/2 with probability p. At a low temperature nearly every z is near 0 or 1, and a
    row is flipped or not. The others are double exposures that no real image is: at p = 1/2 and temperature
    0.1, z lies between 0.05 and 0.95 for 15% of the rows. A lower temperature has fewer of them, and noisier
    gradients.

    Args:
        probability: initial p, in (0, 1).
        axis: ``horizontal`` exchanges left and right, ``vertical`` top and bottom.
        temperature: of the relaxation, > 0.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("logit",)
    fixed = ("axis", "temperature")
    limits: ClassVar = {"logit": (RARE, -RARE)}  # all but one in a million are flipped, or none

    def __init__(
        self,
        probability: float = 0.5,
        axis: Literal["horizontal", "vertical"] = "horizontal",
        temperature: float = 0.1,
    ) -> None:
        super().__init__()
        if axis not in _DIMENSIONS:
            raise ValueError(f"Unknown axis {axis!r} of a flip; choose one of {', '.join(_DIMENSIONS)}.")
        what = "The probability of a flip"
        logit = logit_of(probability, temperature, what, "leave the flip out for 0")
        self.axis, self.temperature, self.logit = axis, temperature, nn.Parameter(torch.tensor(logit))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has its own z."""
        check_images(x, "A flip")
        u = uniform((len(x), 1, 1, 1), like=self.logit)
        z = concrete(self.logit, u, self.temperature).to(x.dtype)
        return z * x.flip(_DIMENSIONS[self.axis]) + (1 - z) * x

    def physical(self) -> dict[str, float]:
        return {f"{self.axis} [%]": 100 * torch.sigmoid(self.logit.detach()).item()}
