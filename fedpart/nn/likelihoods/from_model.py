"""The loss that a network computes by itself, given the labels."""

from typing import Any

from torch import Tensor

from fedpart.nn.likelihoods.base import LIKELIHOODS, Likelihood


@LIKELIHOODS.register("from_model")
class FromModel(Likelihood):
    """The network is called with the targets too, and what it returns is minimised: ``.loss``, ``["loss"]``,
    the only scalar of a tuple, or all of it; a mean over rows, or one number per row ``[B * S]``.

    The average over the S samples is that of losses. Predictions are made without targets.
    """

    def forward(self, outputs: Tensor, targets: Any) -> Tensor:
        raise ValueError(
            "The network computes its loss itself, so that there is none of its outputs; use Task.loss."
        )

    def hits(self, outputs: Tensor, targets: Any) -> Tensor | None:
        classes = isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()
        return outputs.argmax(1) == targets if classes and outputs.ndim == 2 else None
