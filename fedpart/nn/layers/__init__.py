"""Layers that take the place of torch's own: faster ones, and BatchNorm without a batch."""

from fedpart.nn.layers.batchnorm import FrozenBatchNorm, replace_batchnorm
from fedpart.nn.layers.pooling import MaxPoolReLU, PooledConv2d

__all__ = ["FrozenBatchNorm", "MaxPoolReLU", "PooledConv2d", "replace_batchnorm"]
