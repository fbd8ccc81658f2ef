"""Layers that take the place of torch's own: faster ones, and BatchNorm without a batch."""

from fedpart.layers.batchnorm import FrozenBatchNorm, replace_batchnorm
from fedpart.layers.pooled_convolution import PooledConv2d
from fedpart.layers.pooling import MaxPoolReLU

__all__ = ["FrozenBatchNorm", "MaxPoolReLU", "PooledConv2d", "replace_batchnorm"]
