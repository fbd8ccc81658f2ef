"""Layers of networks that torch computes slower than it could."""

from fedpart.layers.pooled_convolution import PooledConv2d
from fedpart.layers.pooling import MaxPoolReLU

__all__ = ["MaxPoolReLU", "PooledConv2d"]
