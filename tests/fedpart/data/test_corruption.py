"""Corrupted images: each closed form, and what all of them have in common."""

import pytest
import torch

from fedpart import Dataset
from fedpart.data.transformed import CORRUPTIONS, SEVERITIES, corrupted

ROWS = torch.arange(32.0).view(-1, 1)
WAVES = [0.5 + 0.3 * torch.sin(0.5 * ROWS + c * ROWS.t() / 5 + n) for n in range(5) for c in range(3)]
IMAGES = torch.stack(WAVES).view(5, 3, 32, 32)
DATA = Dataset(IMAGES, torch.arange(5))


def found(name, severity, images=IMAGES):
    return corrupted(Dataset(images, torch.arange(len(images))), name, severity).inputs


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_images_stay_images_and_go_further_away_with_severity(name):
    before = IMAGES.clone()
    distances = []
    for severity in SEVERITIES:
        one = corrupted(DATA, name, severity)
        assert one.inputs.shape == IMAGES.shape and one.inputs.min() >= 0 and one.inputs.max() <= 1
        assert torch.equal(one.targets, DATA.targets)
        assert torch.equal(one.inputs, corrupted(DATA, name, severity).inputs)
        distances.append((one.inputs - IMAGES).square().mean().item())
    assert min(distances) > 0 and distances[0] < distances[-1]
    assert name == "pixelate" or distances == sorted(distances), "half the pixels fall on whole ones"
    assert torch.equal(IMAGES, before)


def test_closed_forms():
    grey, one = torch.full((1, 1, 6, 6), 0.4), torch.zeros(1, 1, 5, 5)
    one[0, 0, 2, 2] = 0.9
    for name in ("box_blur", "contrast", "pixelate"):
        torch.testing.assert_close(found(name, 5, grey), grey)
    torch.testing.assert_close(found("brightness", 2, grey), grey + 0.2)
    blurred = found("box_blur", 1, one)
    torch.testing.assert_close(blurred[0, 0, 1:4, 1:4], torch.full((3, 3), 0.1))
    assert blurred.sum() == pytest.approx(0.9, abs=1e-6)
    halves = torch.cat([torch.zeros(1, 1, 4, 2), torch.ones(1, 1, 4, 2)], 3)
    torch.testing.assert_close(found("contrast", 4, halves), 0.35 + 0.3 * halves)
    blocks = torch.arange(16.0).view(1, 1, 4, 4) / 16
    wanted = torch.nn.functional.avg_pool2d(blocks, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(found("pixelate", 3, blocks), wanted)
    noise = found("gaussian_noise", 2, torch.full((50, 1, 20, 20), 0.5)) - 0.5
    assert noise.std().item() == pytest.approx(0.08, rel=0.02) and abs(noise.mean()) < 0.002
