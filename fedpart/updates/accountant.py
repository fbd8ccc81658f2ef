"""What repeated Gaussian noise on sums over sampled clients costs in privacy: Renyi accounting."""

import math

import numpy as np
from numpy.typing import NDArray

ORDERS = np.array([*range(2, 257), 320, 384, 512, 768, 1024])


def renyi(rate: float, noise_multiplier: float) -> NDArray[np.float64]:
    """Renyi divergence of one sampled Gaussian mechanism at each of :data:`ORDERS`, nats.

    Every client takes part with probability ``rate``, on its own (Poisson sampling); neighbours differ by
    one client. For whole orders a (Mironov, Talwar, Zhang 2019, Section 3.3), with q the rate and z the
    multiplier,
    ``log(sum_k binomial(a, k) (1 - q)^(a - k) q^k exp(k (k - 1) / (2 z^2))) / (a - 1)``.

    Args:
        rate: in (0, 1].
        noise_multiplier: standard deviation of the noise over the sensitivity of the sum, above 0.
    """
    if rate == 1:
        return ORDERS / (2 * noise_multiplier**2)
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, ORDERS[-1] + 1)))))  # of factorials
    found = []
    for a in ORDERS:
        k = np.arange(a + 1)
        terms = logs[a] - logs[k] - logs[a - k] + k * math.log(rate) + (a - k) * math.log1p(-rate)
        found.append(np.logaddexp.reduce(terms + k * (k - 1) / (2 * noise_multiplier**2)) / (a - 1))
    return np.array(found)


def epsilon(divergence: NDArray[np.float64], rounds: int, delta: float) -> float:
    """The epsilon at ``delta`` of ``rounds`` mechanisms of that :func:`renyi` divergence.

    ``min_a T d_a + log(1 - 1/a) - (log delta + log a) / (a - 1)`` for T rounds and divergences d_a (Canonne,
    Kamath, Steinke 2020, Proposition 12).
    """
    if rounds == 0:
        return 0.0
    bounds = rounds * divergence + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(bounds.min()))
