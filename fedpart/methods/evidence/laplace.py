"""Post-hoc diagonal Laplace: the log marginal likelihood of a trained network, to compare with L_ML."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedpart.checks import require
from fedpart.data.dataset import Dataset, has_labels
from fedpart.extras import need
from fedpart.nn.hyperparameters.base import HyperModule
from fedpart.nn.layers.copying import copied


class DiagonalLaplace(NamedTuple):
    """What :func:`diagonal_laplace` returns."""

    log_marginal_likelihood: float
    """log p(D), in nats, summed over the examples as L_ML is."""
    log_likelihood: float
    """log p(D | theta) of the training data, in nats."""
    prior_precision: float
    """p, as given or as found."""


def diagonal_laplace(
    module: nn.Module, dataset: Dataset, prior_precision: float | Literal["optimised"], *, batch_size: int = 8
) -> DiagonalLaplace:
    """Laplace's approximation of the log marginal likelihood at the network's weights (Immer et al. 2021).

    With weights theta, the prior N(0, 1/p) on each of them and h the diagonal of the generalised Gauss-Newton
    matrix of the summed negative log-likelihood::

        log p(D) = log p(D | theta) - p/2 |theta|^2 - 1/2 sum_i log((h_i + p) / p).

    The computation is laplace-torch's ``DiagLaplace`` with its backend ``CurvlinopsGGN``: the exact diagonal,
    for layers of any kind. It sums over examples, at temperature 1, without terms in 2 pi, which cancel.

    Minimising the *mean* loss of N examples plus ``decay/2 |theta|^2`` (decay added to the gradient, as SGD
    and Adam do) finds the mode under ``prior_precision = decay * N``; decoupled decay (AdamW) has no such
    prior. ``"optimised"`` takes the p that maximises the log marginal likelihood at these weights.

    A copy of the module is evaluated in double precision and in ``eval()``. Hyperparameters and parameters
    that require no gradient are constants without a prior. A weight on which the outputs do not depend
    (behind a mask) contributes its ``-p/2 theta^2`` alone. Memory holds a few times batch_size * K *
    parameters numbers, and larger batches are no faster.
    """
    if not (len(dataset) and has_labels(dataset) and isinstance(dataset.inputs, Tensor)):
        raise ValueError("The Laplace approximation is of a classifier; give examples with class labels.")
    prior = prior_precision
    if not (prior == "optimised" if isinstance(prior, str) else 0 < prior < math.inf):
        remedy = "a weight decay stands for decay * examples"
        raise ValueError(f"A prior precision is a positive number or 'optimised', got {prior!r}; {remedy}.")
    require(batch_size >= 1, f"The batch size must be at least 1, got {batch_size}.")
    laplace, curvature = (
        need(name, "The Laplace approximation", "laplace") for name in ("laplace", "laplace.curvature")
    )

    network = copied(module).double().eval()
    for layer in network.modules():
        if isinstance(layer, HyperModule):
            for name in layer.hyperparameters:
                layer.get_parameter(name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError("The Laplace approximation is over weights, but the module has none to train.")
    inputs = dataset.inputs.double() if dataset.inputs.is_floating_point() else dataset.inputs
    device = next(network.parameters()).device
    if is_random(lambda: network(inputs[:batch_size].to(device))):
        fault = "The network's outputs are random in eval(); the Laplace approximation needs fixed ones,"
        raise ValueError(f"{fault} so take sampled masks and augmentations out of the module.")
    # A generator of its own: iterating a DataLoader would advance torch's.
    examples = TensorDataset(inputs, dataset.targets)
    batches = DataLoader(examples, batch_size=batch_size, generator=torch.Generator())
    fitted = laplace.DiagLaplace(network, "classification", backend=curvature.CurvlinopsGGN)
    fitted.fit(batches)
    if isinstance(prior_precision, str):
        prior_precision = optimal_precision(fitted.H, float(fitted.mean.square().sum()))
    evidence = fitted.log_marginal_likelihood(
        torch.tensor(prior_precision, dtype=torch.float64, device=fitted.H.device)
    )
    return DiagonalLaplace(float(evidence), float(fitted.log_likelihood), float(prior_precision))


def optimal_precision(curvature: Tensor, square_norm: float) -> float:
    """The prior precision p of the largest log marginal likelihood, from h ``[P]`` and ``|theta|^2``.

    Its derivative in log p is ``(sum_i h_i / (h_i + p) - p |theta|^2) / 2`` (MacKay 1992), which falls in p:
    the maximum is where it vanishes."""
    determined = int((curvature > 0).sum())
    fault = "The prior precision has no optimum: all weights are zero, or the outputs do not depend on them"
    require(square_norm > 0 and determined, f"{fault}; train the network first, or give a number.")

    optimize = need("scipy.optimize", "The Laplace approximation", "laplace")  # scikit-learn brings it

    def rises(log_p: float) -> float:
        p = math.exp(log_p)
        return float((curvature / (curvature + p)).sum()) - p * square_norm

    high = math.log(determined / square_norm)  # there the first sum is `determined` at most
    return math.exp(optimize.brentq(rises, high - 700, high + 1))


def is_random(outputs: Callable[[], Tensor]) -> bool:
    """Whether they differ from one time to the next."""
    with torch.no_grad(), torch.random.fork_rng():
        return not torch.equal(outputs(), outputs())
