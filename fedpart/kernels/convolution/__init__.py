"""Convolutions with pooling and ReLU, forward and backward, in one pass over memory."""
