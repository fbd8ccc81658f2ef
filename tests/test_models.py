"""The networks of the experiments."""

import pytest
import torch

from fedpart import ConcreteDropout
from fedpart.models import MODELS, digits_cnn, mnist_cnn


def test_mnist_cnn_is_the_papers():
    assert sum(p.numel() for p in mnist_cnn(dropout=None).parameters()) == 1_276_630
    rates = [
        layer.physical()["rate [%]"] for layer in mnist_cnn().modules() if isinstance(layer, ConcreteDropout)
    ]
    assert rates == pytest.approx([10.0] * 4, abs=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 9)])
def test_outputs(name, shape):
    module = MODELS.resolve(name)(num_classes=7, input_shape=shape)
    assert module(torch.rand(2, *shape)).shape == (2, 7)


def test_too_small_images():
    with pytest.raises(ValueError, match="pools twice and needs images of at least 4x4, got 3x8"):
        digits_cnn(input_shape=(1, 3, 8))
