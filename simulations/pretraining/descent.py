"""What the commands of this room share: the loop of plain training, and what is said of what does not fit."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import typer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from simulations.errors import ConfigError, one_sentence

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


@contextmanager
def training_here() -> Iterator[None]:
    """On one thread, with a log; arguments, data and files that do not fit end the command with a sentence
    and exit status 2."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    try:
        with one_sentence(expected=(ValueError, OSError, ImportError)):
            yield
    except ConfigError as error:
        typer.secho(str(error), fg="red", err=True)
        raise typer.Exit(2) from None
