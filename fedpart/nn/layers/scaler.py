"""Scaler: what a narrow network's layer puts out while it trains, scaled up (HeteroFL, Diao et al. 2021)."""

from torch import Tensor, nn


class Scaler(nn.Module):
    """Divides by the width in training, so that what follows sees values as of the full width.

    Args:
        width: share of the full network's units, in (0, 1].
    """

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x / self.width if self.training and self.width < 1 else x

    def extra_repr(self) -> str:
        return f"width={self.width:g}"
