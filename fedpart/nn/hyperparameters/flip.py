"""Flips of images with a learned probability."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedpart.nn.hyperparameters.base import RARE, TRANSFORMS, Bound, HyperModule, check_images
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

    Raises:
        ValueError: a probability outside (0, 1), an unknown axis, or a temperature that is not positive.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("logit",)
    fixed = ("axis", "temperature")

    def __init__(
        self,
        probability: float = 0.5,
        axis: Literal["horizontal", "vertical"] = "horizontal",
        temperature: float = 0.1,
    ) -> None:
        super().__init__()
        if not 0 < probability < 1:
            raise ValueError(
                f"The probability of a flip lies strictly between 0 and 1, got {probability}; leave the flip "
                f"out for 0."
            )
        if axis not in _DIMENSIONS:
            raise ValueError(f"Unknown axis {axis!r} of a flip; choose one of {', '.join(_DIMENSIONS)}.")
        if not 0 < temperature < math.inf:
            raise ValueError(f"The temperature of a flip is positive, got {temperature}.")
        self.axis, self.temperature = axis, temperature
        self.logit = nn.Parameter(torch.tensor(math.log(probability / (1 - probability))))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has its own z."""
        check_images(x, "A flip")
        u = uniform((len(x), 1, 1, 1), like=self.logit)
        z = torch.sigmoid((self.logit + torch.logit(u)) / self.temperature).to(x.dtype)
        return z * x.flip(_DIMENSIONS[self.axis]) + (1 - z) * x

    def bounds(self) -> dict[str, tuple[Bound, Bound]]:
        """All but one in a million are flipped, or none."""
        return {"logit": (RARE, -RARE)}

    def physical(self) -> dict[str, float]:
        return {f"{self.axis} [%]": 100 * torch.sigmoid(self.logit.detach()).item()}
