"""Residual networks with norms before convolutions (wide ones, and V2), GroupNorm in place of BatchNorm."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from fedpart.nn.hyperparameters import ConcreteDropout
from fedpart.nn.models.base import MODELS

_STEM, _GROUP = 16, 8
Norm = Callable[[int], nn.Module]  # of so many channels


class WideBlock(nn.Module):
    """``shortcut + conv(relu(norm(conv(relu(norm(x))))))``, both convolutions 3x3, with dropout between them.
    The shortcut is a 1x1 convolution of the rectified input where channels differ, and the input itself
    elsewhere."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: nn.Module | None, norm: Norm) -> None:
        super().__init__()
        self.norm1 = norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.dropout = dropout
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """``x [N, inputs, height, width]``; ``[N, outputs, height / stride, width / stride]``."""
        rectified = self.norm1(x).relu()
        shortcut = x if self.shortcut is None else self.shortcut(rectified)
        inner = self.norm2(self.conv1(rectified)).relu()
        if self.dropout is not None:
            inner = self.dropout(inner)
        return shortcut + self.conv2(inner)  # type: ignore[no-any-return]


@MODELS.register("wrn")
def wrn(
    num_classes: int = 10, input_shape: tuple[int, int, int] = (3, 32, 32), depth: int = 16, width: float = 2,
    dropout: float | None = None, temperature: float = 0.1,
) -> nn.Sequential:  # fmt: skip
    """A wide residual network, WRN-depth-width: a convolution of 16 channels, three stages, a linear layer.

    The stages have 16, 32 and 64 times ``width`` channels and ``(depth - 4) / 6`` blocks each; the second and
    the third halve the image. WRN-28-10 has its published 36,479,194 parameters for ten classes. GroupNorm of
    eight channels stands where the published norm is BatchNorm.

    Args:
        depth: 6 n + 4.
        width: factor of the channels; 16 times it is a multiple of 8.
        dropout: initial rate of learned dropout between the convolutions of every block; None for none.
    """
    blocks, left = divmod(depth - 4, 6)
    if left or blocks < 1:
        raise ValueError(f"The depth of a wide residual network is 6 n + 4, as 10, 16 or 28, got {depth}.")
    base = _STEM * width
    if base <= 0 or base % _GROUP:
        raise ValueError(f"Width {width:g} gives {base:g} channels, no multiple of 8; use a multiple of 0.5.")

    def drop() -> nn.Module | None:
        return None if dropout is None else ConcreteDropout(dropout, temperature)

    def norm(channels: int) -> nn.Module:
        return nn.GroupNorm(channels // _GROUP, channels)

    return _network(num_classes, input_shape[0], _STEM, int(base), blocks, drop, norm)


@MODELS.register("resnet_v2")
def resnet_v2(
    num_classes: int = 10, input_shape: tuple[int, int, int] = (3, 32, 32), depth: int = 20, width: int = 16,
    groups: int = 2,
) -> nn.Sequential:  # fmt: skip
    """A "V2" residual network (He et al. 2016) of depth 6 n + 2, with GroupNorm (App. I.3).

    A convolution, three stages of n blocks with 1, 2 and 4 times ``width`` channels, and a linear layer: the
    network that :func:`wrn` is at width 1 and depth 6 n + 4, where shortcuts count. The children ``stem``,
    ``stage1``, ``stage2`` and ``stage3`` are parts that ``hyperparameters`` may name: of depth 20, the first
    three have 13 convolutions of 3x3, as the extractor of the paper's Table 3, and one of 1x1 where channels
    change. At depth 20 it has 272,282 parameters for ten classes, 66,000 of them in these three.

    Args:
        depth: 6 n + 2; 50 is App. I.3's network for TinyImageNet.
        width: channels of the first stage.
        groups: of every GroupNorm; must divide ``width``.
    """
    blocks, left = divmod(depth - 2, 6)
    if left or blocks < 1:
        raise ValueError(f"The depth of a V2 residual network is 6 n + 2, as 8, 20 or 50, got {depth}.")
    if groups < 1 or width < 1 or width % groups:
        raise ValueError(f"groups must divide width, got {groups} and {width}.")
    return _network(
        num_classes, input_shape[0], width, width, blocks, lambda: None, partial(nn.GroupNorm, groups)
    )


def _network(
    num_classes: int, depth: int, channels: int, base: int, blocks: int,
    dropout: Callable[[], nn.Module | None], norm: Norm,
) -> nn.Sequential:  # fmt: skip
    """Images of ``depth`` channels, a stem of ``channels``, stages of 1, 2 and 4 times ``base``."""
    layers = OrderedDict[str, nn.Module]()
    layers["stem"] = nn.Conv2d(depth, channels, 3, padding=1, bias=False)
    for stage, times in enumerate((1, 2, 4)):
        outputs, inner = times * base, list[nn.Module]()
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            inner.append(WideBlock(channels, outputs, stride, dropout(), norm))
            channels = outputs
        layers[f"stage{stage + 1}"] = nn.Sequential(*inner)
    layers["norm"] = norm(channels)
    layers["relu"] = nn.ReLU()
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["classes"] = nn.Linear(channels, num_classes)
    network = nn.Sequential(layers)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    nn.init.zeros_(network.classes.bias)  # type: ignore[union-attr,arg-type]
    return network
