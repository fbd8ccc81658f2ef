"""What ends a strict run over Flower: missing nodes, clients that fail, and settings that need data."""

from functools import partial

import refusals
from flower_experiment import CLIENTS, SLOW, app, build
from flwr.app import ArrayRecord
from inprocess_grid import InProcessGrid
from problems import chain_net, settings

from fedpart import ClientError, Federation, Protocol, Task
from fedpart.flower.nodes import NodesError
from fedpart.flower.strategy import FedPart

VICTIM = build({}).protocol.cohort(1)[2]


def run(clients=CLIENTS, left=(), tamper=None, **config):
    """A round of nodes that have another configuration than the server's, which is that of all tests."""
    grid = InProcessGrid(app, clients, config, tamper=tamper)
    for client in left:
        grid.leave(client)
    FedPart(Federation(build({}).protocol)).run(grid, 1)


def lose(reply):
    victim = reply.has_content() and reply.content["config"]["client"] == VICTIM
    return None if victim else reply


def test_nodes_and_clients():
    failing = rf"Client {VICTIM} failed in round 1: KeyError: .*the disk of this"
    strange = r"its fingerprint is .* start both with the same configuration"
    silent = f"Client {VICTIM} did not answer in round 1 before the timeout"
    seven = r"11 of the 12 .*missing: 7.*--federation-config 'num-supernodes=12'"
    few = r"for 5 clients, the configuration has 12.*'num-supernodes=12'"
    refusals.check(
        [
            ("a client fails", partial(run, failing=VICTIM), ClientError, failing),
            ("no answer", partial(run, tamper=lose), ClientError, silent),
            ("another configuration", partial(run, seed=5), ClientError, strange),
            ("a node is missing", partial(run, left=[7]), NodesError, seven),
            ("a federation of few nodes", partial(run, clients=5), NodesError, few),
        ]
    )


def test_what_a_strategy_needs():
    initial = FedPart(Federation(build({}).protocol))
    grid = InProcessGrid(app, CLIENTS)
    pass_them = r"pass strategy.initial_arrays"
    rows = [("no arrays", lambda: initial.start(grid, ArrayRecord(), 1), ValueError, pass_them)]
    for changes in ({"devices": SLOW}, {"buffer": 2}):
        (name,) = changes
        federation = Federation(Protocol(Task(chain_net()), settings(4, **changes)))
        says = f"^{name}.* simulated time.* use PacedFedPart"
        rows.append((f"{name} without shards", partial(FedPart, federation), ValueError, says))
    refusals.check(rows)
