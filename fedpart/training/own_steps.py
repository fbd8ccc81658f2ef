"""A client's own training step in the place of SGD."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.training.local_sgd import LocalSGD

TrainFn = Callable[[Tensor, Iterable[Any], Callable[[Any], Tensor]], object]
"""``train_fn(weights, batches, loss)``: what a client does with the weights that it trains in a round.

It moves ``weights [n]`` in place, as optimisers of ``torch.optim`` do. They are those of one partition,
at the server's values, and require gradients. ``batches`` are as ``local.batch_size`` and
``local.epochs`` say, in an order drawn anew in every round. ``loss(batch)`` is a scalar in nats per
example, of the subnetwork with the weights as they are then, under the server's psi. Weight decay and
FedProx's pull are in its gradient alone. It has to be asked for once at least.
"""


def own_steps(
    train: TrainFn,
    batches: Iterable[Any],
    gradients_at: Callable[..., Any],
    sgd: LocalSGD,
) -> Iterator[tuple[Any, int]]:
    """A client's loop by its own function: the gradients that it has asked for, and of how many examples."""
    weights, results = sgd.values.detach().clone().requires_grad_(), list[tuple[Any, int]]()

    def loss(of: Any) -> Tensor:
        batch, noise = of
        sgd.move_to(weights.detach())
        result = gradients_at(1, batch, noise)
        results.append((result, batch.examples))
        gradient = sgd.gradient(result.theta)
        told: Tensor = result.loss + torch.sum((weights - weights.detach()) * gradient)
        return told

    train(weights, batches, loss)
    require(results, "train_fn has not called loss(batch), so that nothing is known of the client's loss.")
    sgd.move_to(weights.detach())
    yield from results
