"""Dropout of whole tokens with a learned rate."""

from torch import Tensor

from fedpart.nn.hyperparameters.concrete import keep
from fedpart.nn.hyperparameters.dropout import ConcreteDropout
from fedpart.randomness.noise import uniform


class TokenDropout(ConcreteDropout):
    """A layer behind an embedding that drops whole tokens, by a concrete mask with a learned rate.

    All features of a token have the same mask value ``(1 - z) / (1 - p)``: it, arguments and errors are those
    of :class:`.ConcreteDropout`. Every token may be dropped, one that stands for the sentence too. In
    ``eval()`` it is the identity.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``x``: embedded tokens ``[rows, tokens, features]``; every token has its own mask value."""
        if x.ndim != 3:
            raise ValueError(
                f"Token dropout takes embedded tokens [rows, tokens, features], got {tuple(x.shape)}; put it "
                f"behind the embedding."
            )
        if not self.training:
            return x
        u = uniform((*x.shape[:2], 1), like=self.logit, coarse=True)
        return x * keep(u, self.logit, self.temperature).to(x.dtype)
