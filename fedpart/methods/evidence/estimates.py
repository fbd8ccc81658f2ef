"""Two estimates: Laplace's approximation with Kronecker factors, and a regression on the last layer."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.checks import require
from fedpart.methods.evidence.estimate import Calls, Estimate, Sums, Tensors, layers_of, mean_inputs, parts_of
from fedpart.randomness.noise import NoiseKey
from fedpart.task.task import Batch, Task

LARGEST = 100_000  # weights; the factor of a layer has the square of its inputs


class Kfac(Estimate):
    """With weights theta_l of layer l (its bias included), and the prior N(0, 1/delta_l) on each of them::

        log p(D) = log p(D | theta, psi) - 1/2 sum_l delta_l |theta_l|^2
                   - 1/2 sum_l log det(I + A_l (x) G_l / (N delta_l)).

    A_l (x) G_l / N stands for the generalised Gauss-Newton matrix of the summed negative log-likelihood of
    outputs that are averaged over S samples. For one linear layer it is that matrix, if all examples have the
    same curvature (regression). Dropout is on, as in L_ML.

    - ``A_l = sum_n a_n a_n'``: a_n are the layer's inputs, averaged over the samples.
    - ``G_l = sum_n g_n' Lambda_n g_n``: g_n is the Jacobian of example n's averaged outputs by the layer's
      outputs, summed over the samples. Lambda_n is the Hessian of its negative log-likelihood by the former.
    - Of a convolution, A_l is the mean over its places and G_l the sum (Grosse and Martens 2016).

    Other trained numbers than those of nn.Linear and nn.Conv2d (scales and offsets of norms) are constants
    without a prior. There are no terms in 2 pi, as prior and posterior cancel.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        size = task.parameter_space(1).size
        if size > LARGEST:
            fault = f"Kronecker factors are computed for networks of up to {LARGEST:,} weights, and this one"
            raise ValueError(f"{fault} has {size:,}; use a smaller one, or evidence: last_layer.")
        self.layers = layers_of(task)
        self.own = {f"precision[{layer}]": 1.0 for layer in self.layers}

    def sums(self, w: Tensors, psi: Tensor, batch: Batch, key: NoiseKey, graph: bool = False) -> Sums:
        """A_l and G_l of every layer, one after another, in double precision; then the likelihood."""
        weights = {layer: parts_of(w, layer)[0] for layer in self.layers}
        with Calls(weights) as calls:
            outputs = self.outputs(w, psi, batch, key)
        nll = self.task.likelihood(outputs, batch.targets, psi).sum()
        hessian = _hessian(nll, outputs, graph)
        returned = [out for _, out in calls.seen.values()]
        grad = partial(torch.autograd.grad, retain_graph=True, create_graph=graph, allow_unused=True)
        of_outputs = [grad(column.sum(), returned) for column in outputs.flatten(1).unbind(1)]
        jacobians = dict(zip(calls.seen, zip(*of_outputs, strict=True), strict=True))
        factors: list[Tensor] = []
        for layer in self.layers:
            fault = f"The layer {layer} is not called as a module of its own, so it has no Kronecker factors"
            require(layer in calls.seen, f"{fault}; freeze it, or use another method.")
            if jacobians[layer][0] is None:  # the outputs do not depend on it
                factors += [torch.zeros(1, 1).to(nll)] * 2
                continue
            rows, _ = calls.seen[layer]
            a = mean_inputs(rows, batch.examples, len(parts_of(w, layer)) > 1).double()
            images = weights[layer].ndim == 4
            g = torch.stack([_by_places(row, images, batch.examples) for row in jacobians[layer]]).double()
            weighed = torch.einsum("bkj,jbto->kbto", hessian.double(), g)
            factors.append(torch.einsum("bti,btj->ij", a, a) / a.shape[1])
            factors.append(torch.einsum("kbto,kbtp->op", g, weighed))
        return *factors, nll.double()

    def reduced(self, sums: Sums) -> Sums:
        """Eigenvalues of A_l and G_l of every layer; then the likelihood."""
        # The derivative of eigenvalues alone, without eigenvectors, exists where some are equal.
        return *(torch.linalg.eigvalsh(factor).clamp_min(0) for factor in sums[:-1]), sums[-1]

    def evidence(self, reduced: Sums, w: Tensors, own: Tensor, examples: int) -> Tensor:
        """See the class; ``own``: log delta_l ``[L]``."""
        evidence = -reduced[-1] - self.penalty(w, own)
        for inputs, outputs, log_precision in zip(reduced[:-1:2], reduced[1:-1:2], own, strict=True):
            ratio = torch.outer(inputs, outputs) / (examples * log_precision.exp())
            evidence = evidence - ratio.log1p().sum() / 2
        return evidence

    def penalty(self, w: Tensors, own: Tensor) -> Tensor:
        """``1/2 sum_l delta_l |theta_l|^2``, a scalar; ``own``: log delta_l ``[L]``."""
        parts = (torch.cat([part.flatten() for part in parts_of(w, layer)]) for layer in self.layers)
        return (own.exp() * torch.stack([theta.square().sum() for theta in parts])).sum() / 2


def _hessian(nll: Tensor, outputs: Tensor, graph: bool) -> Tensor:
    """Of each example's negative log-likelihood by its outputs, ``[B, K, K]``."""
    (slope,) = torch.autograd.grad(nll, outputs, create_graph=True)
    rows = [
        torch.autograd.grad(column.sum(), outputs, retain_graph=True, create_graph=graph)[0].flatten(1)
        for column in slope.flatten(1).unbind(1)
    ]
    return torch.stack(rows, 1)


def _by_places(gradient: Tensor, images: bool, examples: int) -> Tensor:
    """A derivative by a layer's outputs, summed over the samples: ``[B, places, outputs]``."""
    flat = gradient.reshape(len(gradient), -1, gradient.shape[-1])
    if images:
        flat = gradient.flatten(2).transpose(1, 2)
    return flat.reshape(examples, -1, *flat.shape[1:]).sum(1)


class LastLayer(Estimate):
    """Bayesian linear regression on what the last linear layer takes.

    With features F ``[N, M]`` averaged over S samples (and a 1 for a bias), targets Y ``[N, K]`` (one-hot for
    classes), weights from N(0, 1/alpha) and noise of variance 1/beta, every column of Y is from
    N(0, I/beta + F F'/alpha). In M dimensions (Bishop 2006, Eq. 3.86), with ``A = alpha I + beta F'F``::

        log p(Y) = K/2 (M log alpha + N log beta - log det A - N log 2 pi)
                   - beta/2 (|Y|^2 - beta tr(Y'F A^-1 F'Y)).

    The network is trained as usual; its own last weights have no part in this. Schwobel et al. have a sparse
    variational Gaussian process with 1,200 inducing points in its place, and train the network by its bound.
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
            fault = "The last layer's evidence needs a network that ends in a linear layer of one vector an"
            raise ValueError(f"{fault} example; use evidence: kfac.")
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
        determinant = 2 * lower.diagonal().log().sum()
        return k / 2 * (logs - determinant) - beta / 2 * (square - beta * explained)  # type: ignore[no-any-return]
