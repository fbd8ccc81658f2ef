"""A stripe across an axis, set to 0, whose largest width is learned (Park et al. 2019, *SpecAugment*)."""

from typing import ClassVar

from torch import Tensor

from fedpart.nn.hyperparameters.base import Bound, HyperModule, started
from fedpart.nn.hyperparameters.soft_edges import check_softness, soft_box
from fedpart.randomness.noise import uniform


class AxisMask(HyperModule):
    """Sets a stripe across one axis of each row to 0; psi is the largest width of the stripe.

    As in the paper the width is drawn from ``U(0, width)``, and the stripe's place uniformly among those that
    lie within the axis. Its edges are soft (:func:`.soft_box`), or a loss would not be differentiable in the
    width; so a stripe of few places is not wholly 0 inside. For several stripes list the transform as often.

    Args:
        width: initial largest width as a fraction of the axis; psi and -psi are the same.
        softness: of the edges, in places of the axis, > 0; an edge goes from 10% to 90% within 4.4 of it.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("width",)
    fixed = ("softness",)
    axis: ClassVar[int] = -1
    """The axis that the stripe lies across, counted from the last."""

    def __init__(self, width: float = 0.1, softness: float = 0.5) -> None:
        super().__init__()
        check_softness(softness)
        self.softness = softness
        self.width = started(width, "width of a mask starts from a finite fraction of its axis")

    def forward(self, x: Tensor) -> Tensor:
        """``x``: ``[rows, ..., frequency, time]``; each row has its own stripe."""
        if x.ndim < 3:
            raise ValueError(
                f"{type(self).__name__} takes spectrograms [rows, frequency, time] or [rows, channels, "
                f"frequency, time], got {tuple(x.shape)}."
            )
        u = uniform((len(x), 2), like=self.width)
        width = self.width.abs() * u[:, :1]
        centre = width / 2 + u[:, 1:] * (1 - width).clamp(min=0)
        kept = 1 - soft_box(x.shape[self.axis], centre, width, self.softness)
        shape = [len(x), *[1] * (x.ndim - 1)]
        shape[self.axis] = x.shape[self.axis]
        return x * kept.view(shape).to(x.dtype)

    def bounds(self) -> dict[str, tuple[Bound, Bound]]:
        """Twice the axis: nothing is left of it, wherever the centre is."""
        return {"width": (-2.0, 2.0)}

    def widths(self) -> Tensor:
        """Width of the distribution of the stripe's width, as a fraction of the axis, ``[1]``."""
        return self.width.abs().view(1)

    def physical(self) -> dict[str, float]:
        return {"largest width [%]": 100 * self.width.detach().abs().item()}
