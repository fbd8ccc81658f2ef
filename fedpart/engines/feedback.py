"""What a client adds to the cohort's sum in place of psi's gradient, where examples are held out."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedpart.engines.batches import divided
from fedpart.federated.protocol import Protocol
from fedpart.methods.base import ClientView
from fedpart.randomness.noise import Noise
from fedpart.task.gradients import Point
from fedpart.task.held_out import score
from fedpart.task.task import Batch


def feedback(
    protocol: Protocol,
    view: ClientView,
    examples: int,
    before: Point,
    after: Point,
    noisy: Callable[[Sequence[Tensor]], Iterator[tuple[Batch, Noise]]],
) -> Tensor:
    """What takes the place of psi's gradient where examples are held out: see :meth:`.Method.feedback`.

    Args:
        view, examples: the client, and how many examples it has.
        before, after: the job's subnetwork at the server's values, and as the client has trained it.
        noisy: the client's examples at the places of each batch, each batch with its noise.

    Returns:
        ``[P]``, per example learned from, for the sum will be weighted by these.
    """
    learned, held, _ = divided(protocol, view.number, examples)
    batches = torch.split(held, protocol.settings.local.batch_size) if len(held) else ()
    psi = protocol.method.local_psi(view)
    scores = (score(view.task, one.tensors, psi, noisy(batches)) for one in (before, after))
    return protocol.method.feedback(view, *scores) / len(learned)
