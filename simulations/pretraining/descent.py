"""The loop of plain training: a step along the gradient of each loss."""

import logging
from collections.abc import Callable

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_LOGGER = logging.getLogger(__name__)


def descend(
    loss_of: Callable[[int], Tensor], optimiser: Optimizer, rates: LRScheduler, steps: int, log_every: int
) -> None:
    """Step ``optimiser`` along ``loss_of(step)`` for steps 0.., and log every so many losses."""
    for step in range(steps):
        loss = loss_of(step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rates.step()
        if step % log_every == 0:
            _LOGGER.info("step %d of %d: loss %.3f", step, steps, loss.item())
