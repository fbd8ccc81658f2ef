"""Nodes whose keys are registered: a key is one client's, whatever its node says."""

import pytest
from flwr.proto.node_pb2 import NodeInfo

from server.nodes import Nodes, NodesError
from tests.flower_experiment import app
from tests.inprocess_grid import InProcessGrid

CLIENTS = 3


class RegisteredGrid(InProcessGrid):
    """A grid of nodes with registered keys.

    Args:
        names: of the registrations, by what the node says of itself, its partition-id.
    """

    def __init__(self, names):
        super().__init__(app, 0)
        self.names = {}
        for client, name in names:
            node = self.join({"partition-id": client, "num-partitions": CLIENTS})
            self.names[node] = name

    def get_nodes(self):
        return [NodeInfo(node_id=node, name=self.names[node]) for node in self.get_node_ids()]

    def named(self, name):
        return next(node for node, its in self.names.items() if its == name)


def honest():
    return [(client, f"client-{client}") for client in range(CLIENTS)]


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("name", ["client-3", "client-0", "somebody", ""])
def test_a_node_that_claims_the_number_of_another_is_refused_and_the_others_stay(name, lenient, caplog):
    grid = RegisteredGrid([*honest(), (1, name)])
    nodes = Nodes(CLIENTS, wait=0.0, lenient=lenient).wait_for(grid, range(CLIENTS))
    assert nodes == {0: nodes[0], 1: grid.named("client-1"), 2: grid.named("client-2")}
    assert grid.names[nodes[0]] == "client-0"


def test_its_own_number_is_missing_then():
    grid = RegisteredGrid([(0, "client-0"), (0, "client-1"), (2, "client-2")])
    with pytest.raises(NodesError, match=r"2 of the 3 configured clients are connected \(missing: 1\)"):
        Nodes(CLIENTS, wait=0.0, lenient=False).wait_for(grid, range(CLIENTS))


def test_names_that_are_no_clients_bind_nothing():
    grid = RegisteredGrid([(client, f"machine {client}") for client in range(CLIENTS)])
    assert list(Nodes(CLIENTS, wait=0.0, lenient=False).present(grid)) == [0, 1, 2]
