"""Layers of networks that torch computes slower than it could."""

from fedpart.layers.pooling import MaxPoolReLU

__all__ = ["MaxPoolReLU"]
