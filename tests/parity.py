"""What the grouped executor computes, beside what the loop does."""

import pytest
from problems import AtRound, perturbed, settings, shards

from fedpart import ClientError, Protocol
from fedpart.engines.executor import Executor
from fedpart.engines.grouped import GroupedRunner

ROUND, SIZES = 5, (7, 12, 3, 9, 10, 1)


def started(task, watched=None, rows=None, sizes=SIZES, **changes):
    """The loop and the grouped executor at the same, perturbed values; ``watched`` is for the method."""
    protocol = Protocol(task, settings(len(sizes), **{"chunks": (0.5, 0.3, 0.2), **changes}))
    if watched is not None:
        protocol.method = watched
    federation = perturbed(protocol)
    both = Executor(protocol), GroupedRunner(protocol, (), rows)
    return *(AtRound(executor, ROUND, federation.w, federation.psi) for executor in both), protocol


def cohort(executor, protocol, data):
    return list(executor.run_cohort(list(range(protocol.settings.clients)), data))


def assert_close(found, expected, tolerance, what):
    error = (found - expected).abs().max().item()
    assert error <= tolerance * expected.abs().max().item(), f"{what}: {error:g}"


def assert_parity(task, tolerance, data=None, **changes):
    """Every client's update is that of the loop, to ``tolerance`` of the largest element of each tensor."""
    loop, grouped, protocol = started(task, **changes)
    data = shards(changes.get("sizes", SIZES)) if data is None else data
    for client, update in enumerate(cohort(grouped, protocol, data)):
        assert not isinstance(update, ClientError), update
        jobs = protocol.plan(client, ROUND)
        expected = loop.run(client, data[client], jobs)
        protocol.check(update)
        for j, delta in update.cells.items():
            assert_close(delta, expected.cells[j], tolerance, f"w_{j} of client {client}")
        if expected.psi is not None:
            # The examples' gradients with respect to psi cancel, which leaves fewer digits.
            assert_close(update.psi, expected.psi, 5 * tolerance, f"psi of client {client}")
        assert update.loss == pytest.approx(expected.loss, rel=tolerance)
        assert update.examples == expected.examples
        assert update.unseen_loss == pytest.approx(expected.unseen_loss, rel=tolerance)
        assert update.unseen_examples == expected.unseen_examples
        assert update.visited == expected.visited
