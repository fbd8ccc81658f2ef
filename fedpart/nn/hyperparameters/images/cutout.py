"""A square cut out of each image, whose side is learned (DeVries and Taylor 2017, *Cutout*)."""

from typing import ClassVar

from torch import Tensor

from fedpart.nn.hyperparameters.base import TRANSFORMS, Bound, HyperModule, check_images, started
from fedpart.nn.hyperparameters.soft_edges import check_softness, soft_box
from fedpart.randomness.noise import uniform


@TRANSFORMS.register("cutout")
class Cutout(HyperModule):
    """Sets a square of each row to 0; psi is its side, and its centre is uniform over the image.

    The square may reach beyond the image, as in the paper. Its edges are soft (:func:`.soft_box`), or a
    loss would not be differentiable in the side; so a square of few pixels is not wholly 0 inside.

    Args:
        side: initial side as a fraction of the image's shorter side; at exactly 0 its gradient is 0, for side
            and -side are the same.
        softness: of the edges, in pixels, > 0; an edge goes from 10% to 90% within 4.4 of it.

    Raises:
        ValueError: a softness that is not positive, or a side that is not finite.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("side",)
    fixed = ("softness",)

    def __init__(self, side: float = 0.2, softness: float = 0.5) -> None:
        super().__init__()
        check_softness(softness)
        self.softness = softness
        self.side = started(side, "side of a cutout starts from a finite fraction of the image")

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row has a square of its own."""
        check_images(x, "Cutout")
        height, width = x.shape[2:]
        centre = uniform((len(x), 2), like=self.side)
        pixels = self.side * min(height, width)
        down = soft_box(height, centre[:, :1], pixels / height, self.softness)
        across = soft_box(width, centre[:, 1:], pixels / width, self.softness)
        hole = down[:, None, :, None] * across[:, None, None, :]
        return x * (1 - hole).to(x.dtype)

    def bounds(self) -> dict[str, tuple[Bound, Bound]]:
        """Twice the image's side: nothing is left of it, wherever the centre is."""
        return {"side": (-2.0, 2.0)}

    def physical(self) -> dict[str, float]:
        return {"side [%]": 100 * self.side.detach().abs().item()}
