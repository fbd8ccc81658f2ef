"""Drawn sizes: what a client's change counts of whose local steps only some have trained a number."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedpart.checks import require
from fedpart.methods.base import FederatedMethod
from fedpart.partition.partition import Partition
from fedpart.updates.update import Round, Update


def draws_sizes(method: FederatedMethod, settings: Any) -> bool:
    """Whether local steps go through parts of the clients' networks."""
    sizes = settings.architectures is not None
    fault = "draw_sizes draws from architectures, but there are none"
    remedy = "give them, or leave draw_sizes out"
    require(sizes or not settings.method_options.get("draw_sizes"), f"{fault}; {remedy}.")
    require(
        not (sizes and method.draw_sizes and settings.error_feedback),
        "A round leaves out numbers that none of a client's steps has trained, and with them what "
        "error_feedback adds; leave it or drawn sizes out.",
    )
    return sizes and method.draw_sizes


def shares_of(sizes: Sequence[int], steps: int, partitions: Sequence[Partition]) -> dict[int, float]:
    """The share of steps that train each cell, if there are so many and they go through ``sizes`` in turn."""
    trained, (again, rest) = Counter[int](), divmod(steps, len(sizes))
    for size in {*sizes}:
        often = again * sizes.count(size) + sizes[:rest].count(size)
        for j in range(1, partitions[size].chunks + 1):
            trained.update(dict.fromkeys(partitions[size].cell_sizes(j), often))
    return {cell: often / steps for cell, often in trained.items()}


def as_trained(protocol: Any, update: Update, client: int, round: Round) -> None:
    """Make each change what it were if all of the client's steps had trained the cell, in place. It weighs
    the share of those that have, or with a defence, for which clients are equal, as any other; what none has
    trained is left out."""
    view = protocol.view(client, round.number, round.psi)
    local = protocol.method.local_settings(view)
    steps = local.epochs * -(-update.examples // local.batch_size)
    shares = shares_of(view.drawn_sizes(steps), steps, protocol.partitions)
    for cell, change in update.cells.items():
        if not (share := shares.get(cell, 0.0)):
            del update.parts[cell]
        elif share < 1:
            change.div_(share)
            update.shares |= {} if protocol.settings.defence is not None else {cell: share}
