"""Evidence of the last layer, our stand-in for the Gaussian process of Schwobel et al. (2021)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.methods.evidence.estimate import Estimate, Sums
from fedpart.methods.evidence.layers import Calls, Tensors, layers_of, mean_inputs, parts_of
from fedpart.randomness.noise import NoiseKey
from fedpart.task.task import Batch, Task


class LastLayer(Estimate):
    """Bayesian linear regression on what the last linear layer takes.

    With features F ``[N, M]`` averaged over S samples (and a 1 for a bias), targets Y ``[N, K]`` (one-hot for
    classes), weights from N(0, 1/alpha) and noise of variance 1/beta, every column of Y is from
    N(0, I/beta + F F'/alpha). In M dimensions (Bishop 2006, Eq. 3.86), with ``A = alpha I + beta F'F``::

        log p(Y) = K/2 (M log alpha + N log beta - log det A - N log 2 pi)
                   - beta/2 (|Y|^2 - beta tr(Y'F A^-1 F'Y)).

    The network is trained as usual; its own last weights have no part in this. Schwobel et al. have a sparse
    variational Gaussian process with 1,200 inducing points in its place, and train the network by its bound.

    Args:
        task: see :class:`.Estimate`; its network calls a linear layer last.

    Raises:
        ValueError: no such layer is trained.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.layers = layers_of(task)
        self.own = {"alpha": 1.0, "beta": 20.0}  # a variance of 0.05, as Schwobel et al. start from

    def sums(self, w: Tensors, psi: Tensor, batch: Batch, key: NoiseKey, graph: bool = False) -> Sums:
        """``F'F [M, M]``, ``F'Y [M, K]`` and ``|Y|^2``, in double precision."""
        weights = {layer: parts_of(w, layer)[0] for layer in self.layers}
        with torch.set_grad_enabled(graph), Calls(weights) as calls:
            outputs = self.outputs(w, psi, batch, key)
        layer, (rows, out) = next(reversed(calls.seen.items()))
        if out.ndim != 2 or out.shape[1:] != outputs.shape[1:]:
            raise ValueError(
                "The last layer's evidence needs a network that ends in a linear layer of one vector an "
                "example; use evidence: kfac."
            )
        features = mean_inputs(rows, batch.examples, len(parts_of(w, layer)) > 1)[:, 0].double()
        y = batch.targets
        y = y.reshape(batch.examples, -1) if y.is_floating_point() else F.one_hot(y, outputs.shape[1])
        y = y.double()
        return features.T @ features, features.T @ y, y.square().sum()

    def evidence(self, reduced: Sums, w: Tensors, own: Tensor, examples: int) -> Tensor:
        """See the class; ``own``: log alpha and log beta ``[2]``."""
        moments, products, square = reduced
        (m, k), (alpha, beta) = products.shape, own.exp()
        lower = torch.linalg.cholesky(alpha * torch.eye(m).to(moments) + beta * moments)
        explained = torch.linalg.solve_triangular(lower, products, upper=False).square().sum()
        logs = m * alpha.log() + examples * (beta.log() - math.log(2 * math.pi))
        found: Tensor = k / 2 * (logs - 2 * lower.diagonal().log().sum()) - beta / 2 * (
            square - beta * explained
        )
        return found
