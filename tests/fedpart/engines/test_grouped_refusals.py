"""What cannot be computed together, and clients that fail beside others."""

from functools import partial

import pytest
import refusals
import torch
from parity import ROUND, SIZES, assert_close, cohort, started
from problems import CLASSES, Branching, Lazy, augmentation, chain_net, shards

from fedpart import ClientError, Dataset, LocalSettings, Task


def test_what_cannot_be_computed_together():
    _, grouped, protocol = started(Task(Branching(), samples=1))
    branching = partial(cohort, grouped, protocol, shards(SIZES))
    last = partial(started, Task(chain_net(), channels_last=True))
    no_rows = partial(started, Task(chain_net()), rows=0)
    loop = r"cannot be computed together \(.*; use execution: loop"
    refusals.check(
        [
            ("a network that branches on data", branching, ValueError, loop),
            ("images of channels last", last, ValueError, "channels-last"),
            ("no rows", no_rows, ValueError, "rows .* at least 1, got 0"),
        ]
    )


def test_a_client_that_fails_is_named_and_the_others_go_on():
    data = shards(SIZES)
    data[0] = data[0].subset([])
    data[2] = Dataset(data[2].inputs, torch.tensor([0, CLASSES, 1]))

    def read(client):
        if client == 4:
            raise OSError("disk gone")
        return data[client]

    loop, grouped, protocol = started(Task(chain_net(), transforms=[augmentation()], samples=2))
    updates = cohort(grouped, protocol, Lazy(read, len(data)))
    assert [isinstance(update, ClientError) for update in updates] == [True, False, True, False, True, False]
    assert str(updates[0]) == "Client 0 has no examples; give every client at least one."
    assert "data of client 2 do not fit the network" in str(updates[2])
    assert str(updates[4]) == f"Client 4 failed in round {ROUND}: OSError: disk gone"
    for client in (1, 3, 5):
        expected = loop.run(client, data[client], protocol.plan(client, ROUND))
        for j, delta in updates[client].cells.items():
            assert_close(delta, expected.cells[j], 1e-5, f"w_{j} of client {client}")


def test_a_loss_that_is_not_finite_names_client_and_round():
    data = shards(SIZES)
    data[3].inputs.fill_(3e38)
    loop, grouped, protocol = started(Task(chain_net(), samples=1), local=LocalSettings(batch_size=2))
    updates = cohort(grouped, protocol, data)
    assert [client for client, update in enumerate(updates) if isinstance(update, ClientError)] == [3]
    with pytest.raises(ClientError, match=r"loss of client 3 in round 5 is (nan|inf)") as alone:
        loop.run(3, data[3], protocol.plan(3, ROUND))
    assert str(updates[3]) == str(alone.value)
