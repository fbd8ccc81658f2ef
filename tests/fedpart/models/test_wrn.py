"""Wide residual networks have their published sizes, and narrow ones are leading corners of wide ones."""

import pytest
import torch
from torch import nn

from fedpart.models import wrn


@pytest.mark.parametrize(
    ("depth", "width", "numbers"),
    [(28, 10, 36_479_194), (10, 1, 77_850), (10, 2, 303_706), (16, 1, 175_066), (16, 2, 691_674)],
)
def test_published_numbers_of_parameters(depth, width, numbers):
    with torch.device("meta"):
        network = wrn(depth=depth, width=width)
    assert sum(parameter.numel() for parameter in network.parameters()) == numbers
    norms = [layer for layer in network.modules() if isinstance(layer, nn.GroupNorm)]
    assert len(norms) == 2 * 3 * (depth - 4) // 6 + 1, "two a block, and the last, as BatchNorm is published"
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == depth - 3 + (2 if width == 1 else 3), "shortcuts besides"


def test_a_narrow_network_is_the_leading_corner_of_a_wide_one():
    wide, narrow = wrn(width=1.5, depth=10), wrn(width=1, depth=10)
    assert isinstance(wide.stage1[0].shortcut, nn.Conv2d) and narrow.stage1[0].shortcut is None
    x = torch.rand(2, 16, 8, 8)
    for part, whole in ((narrow.stage2[0].norm2, wide.stage2[0].norm2), (narrow.norm, wide.norm)):
        images = torch.rand(2, whole.num_channels, 8, 8)
        torch.testing.assert_close(
            part(images[:, : part.num_channels]), whole(images)[:, : part.num_channels]
        )
    assert narrow.stage2(narrow.stage1(x)).shape == (2, 32, 4, 4), "the second stage halves the image"


@pytest.mark.parametrize("options, wanted", [({"depth": 12}, "6 n"), ({"width": 1.2}, "a multiple of 0.5")])
def test_other_depths_and_widths_are_refused(options, wanted):
    with pytest.raises(ValueError, match=wanted):
        wrn(**options)
