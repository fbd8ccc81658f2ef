"""validated: psi along the gradient on what clients hold out, weights on the rest."""

import pytest
import torch
from problems import after, assert_near, augmentation, chain_net, settings, shard, shards

from fedpart import Federation, LocalSettings, Protocol, SGDSettings, Task
from fedpart.engines.batches import count_visited, divided, local_batches
from fedpart.methods.base import build_method
from fedpart.task.gradients import Job

SIZES = [3, 7, 2, 9, 4]


def made(method="validated"):
    task = Task(chain_net(dropout=False), transforms=[augmentation()], samples=2, precision="fp64")
    how = LocalSettings(learning_rate=0.3, batch_size=3)
    known = {"cohort": 5, "local": how, "server_psi": SGDSettings(0.1)}
    return Federation(Protocol(task, settings(5, method=method, **known)))


def replaced(part):
    """Shards in which others are in the places of ``part``."""
    data, protocol = shards(SIZES), made().protocol
    for client, mine in enumerate(data):
        places, other = getattr(divided(protocol, client, len(mine)), part), shard(len(mine), 99 + client)
        mine.inputs[places], mine.targets[places] = other.inputs[places], other.targets[places]
    return data


def test_weights_follow_from_what_is_learned_and_psi_from_what_is_held_out():
    calm, held, learned = (
        after(1, made(), data)[0] for data in (shards(SIZES), replaced("feedback"), replaced("learned"))
    )
    assert torch.equal(held.w, calm.w) and not torch.equal(held.psi, calm.psi)
    assert torch.equal(learned.psi, calm.psi) and not torch.equal(learned.w, calm.w)


@pytest.mark.parametrize("method", ["validated", "validated+scaffold"])
def test_clients_computed_together_agree_and_send_psi_beside_what_fedavg_sends(method):
    (loop, reports), (grouped, _) = (
        after(2, made(method), shards(SIZES), execution=kind) for kind in ("loop", "grouped")
    )
    assert_near(grouped, loop)
    plain = after(2, made("fedavg"), shards(SIZES))[1]
    psi = 5 * loop.protocol.task.psi_space.size * 8
    assert reports[0].upload_bytes == plain[0].upload_bytes + psi


def test_visits_are_counted_and_a_single_example_serves_for_both():
    protocol = made().protocol
    for examples in (1, 2, 9):
        view = protocol.view(0, 1)
        for job in (Job(1, 1), Job(1, psi=True)):
            batches = local_batches(protocol, view, view.local, examples, job)
            assert sum(map(len, batches)) == count_visited(protocol, view.local, examples, job) > 0


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        build_method("validated", {"share": 1.0})
    with pytest.raises(ValueError, match="use execution: loop"):
        after(1, made(), shards(SIZES), execution="fused")
